"""What the stored runs say of a cell: its counts exactly, and its time where that is clear.

The two steps of the gate that cost nothing but the session's own measurement. Never fails a cell on
its time. Must not know where a cell was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perfsuite.gate.accepted import Accepted
from perfsuite.gate.exact import Counted, compare_counts, parse_slacks
from perfsuite.gate.screen import MIN_SESSIONS, Candidate, screen
from perfsuite.gate.stored import StoredRun
from perfsuite.verdicts import CellVerdict


@dataclass(kw_only=True)
class History:
    """The usable runs of this environment, and the cells that this session has measured so far.

    Attributes:
        runs: The newest last.
        refused: Why each other stored run is not among them.
        accepted: Reviewed exceptions.
        probe: Measures the host when the first cell is screened.
        candidates: The cells that were screened, whose spreads moderate each other's.
    """

    runs: Sequence[StoredRun]
    refused: tuple[str, ...]
    accepted: Accepted
    probe: Callable[[], Mapping[str, float]]
    candidates: list[Candidate] = field(default_factory=list)

    def can_screen(self, name: str) -> bool:
        """Whether enough runs hold the cell to say anything of its time."""
        return sum(name in run.cells for run in self.runs) >= MIN_SESSIONS

    def judge_counts(
        self,
        name: str,
        head: Counted,
        counts: Mapping[str, object],
        say: Callable[[str], None],
    ) -> CellVerdict | None:
        """Return a FAIL where a count or the memory grew against the newest run; else None.

        A decrease never fails: it asks for a new stored run, because the old one would let the
        count grow again unseen.

        Args:
            name: The cell.
            head: What was counted now.
            counts: What the cell's markers ask.
            say: Shows a line.

        Raises:
            SettingError: The markers name no count, or no slack.
        """
        base = next((run.cells[name] for run in reversed(self.runs) if name in run.cells), None)
        if base is None:
            return None
        compared = compare_counts(
            base,
            head,
            slacks=parse_slacks(counts, "perf marker"),
            accepted_ratio=lambda count: self.accepted.allowed_increase(name, count),
        )
        if compared.decreases:
            shrunk = "; ".join(map(str, compared.decreases))
            say(
                f"{name}: {shrunk}; store a new run (--benchmark-save=NAME), or an increase up to "
                "the old one passes"
            )
        if not compared.increases:
            return None
        reason = "; ".join(map(str, compared.increases))
        return CellVerdict(name=name, word="FAIL", by="counts", reason=reason)

    def screen(self, candidate: Candidate, say: Callable[[str], None]) -> CellVerdict | None:
        """Return a PASS or IMPROVED where the cell is clearly fine; else None, for the judge.

        Args:
            candidate: The cell, and what this session measured of it.
            say: Shows a line: why it is left to the judge.
        """
        self.candidates.append(candidate)
        found = screen(self.candidates, self.runs, self.probe())
        screened = found.cells[candidate.fullname]
        if not screened.is_clearly_fine:
            say(f"{candidate.fullname} goes to the judge: {screened.reason}")
            return None
        return CellVerdict(
            name=candidate.fullname,
            word="IMPROVED" if screened.is_clearly_faster else "PASS",
            by="screen",
            ratio=screened.ratio,
            interval=screened.interval,
            tolerance=candidate.tolerance,
            limit=candidate.limit,
            reason=screened.reason,
        )
