"""What the stored runs say of a cell: its counts exactly, and its time where that is clear.

The two steps of the gate that cost nothing but the session's own measurement. Never fails a cell on
its time. Must not know where a cell was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from perfsuite.errors import StorageError
from perfsuite.gate.baselines.accepted import Accepted
from perfsuite.gate.baselines.screen import MAX_SESSIONS, MIN_SESSIONS, Candidate, Screener
from perfsuite.gate.baselines.select import choose_runs, find_proposed
from perfsuite.gate.git.repository import find_trunk, is_in_history
from perfsuite.gate.judge.counts import Counted, compare_counts, parse_slacks
from perfsuite.records.run_file import StoredRun
from perfsuite.records.verdict import CellVerdict
from perfsuite.system.urls import AnyPath


@dataclass(kw_only=True)
class History:
    """The usable runs of this environment, and the cells that this session has measured so far.

    Attributes:
        runs: The newest last.
        refused: Why each other stored run is not among them.
        accepted: Reviewed exceptions.
        probe: Measures the host when the first cell is screened.
    """

    runs: Sequence[StoredRun]
    refused: tuple[str, ...]
    accepted: Accepted
    probe: Callable[[], Mapping[str, float]]

    @cached_property
    def _screener(self) -> Screener:
        return Screener(self.runs, self.probe())

    def can_screen(self, name: str) -> bool:
        """Whether enough runs hold the cell to say anything of its time."""
        return sum(name in run.cells for run in self.runs) >= MIN_SESSIONS

    def judge_counts(
        self,
        name: str,
        head: Counted,
        num_samples: int | None,
        counts: Mapping[str, object],
        say: Callable[[str], None],
    ) -> CellVerdict | None:
        """Return a FAIL where a count or the memory grew against the newest run; else None.

        A decrease never fails: it asks for a new stored run, because the old one would let the
        count grow again unseen.

        Args:
            name: The cell.
            head: What was counted now.
            num_samples: Of a step; None of what is no step.
            counts: What the cell's markers ask.
            say: Shows a line.

        Raises:
            SettingError: The markers name no count, or no slack.
        """
        base = next((run.cells[name] for run in reversed(self.runs) if name in run.cells), None)
        if base is None or base.num_samples != num_samples:
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
        self._screener.add(candidate)
        screened = self._screener.decide(candidate)
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


def read_history(
    root: Path,
    storage: AnyPath | None,
    selector: str | Literal[True],
    fingerprint: str,
    *,
    accepted: Accepted,
    probe: Callable[[], Mapping[str, float]],
) -> History:
    """Return what the stored runs of this environment say: those of the base, as far as needed.

    Args:
        root: A folder of the checkout; outside git runs are not tied to commits.
        storage: The place in which runs are stored; None is one that only pytest-benchmark reads.
        selector: What `--benchmark-compare` was given.
        fingerprint: Of the environment of this session.
        accepted: Reviewed exceptions.
        probe: Measures the host.

    Raises:
        SettingError: The selector names no run.
    """
    runs: tuple[StoredRun, ...] = ()
    if storage is None:
        refused: tuple[str, ...] = ("the runs in Elasticsearch, which only pytest-benchmark reads",)
    else:
        trunk = find_trunk(root)
        try:
            chosen = choose_runs(
                storage,
                selector,
                fingerprint,
                is_in_history=None if trunk is None else lambda it: is_in_history(root, it, trunk),
                is_proposed=find_proposed(root, storage, trunk),
                max_sessions=MAX_SESSIONS,
            )
            runs, refused = chosen.usable, tuple(map(str, chosen.refused))
        except StorageError as error:
            refused = (str(error),)
    return History(runs=runs, refused=refused, accepted=accepted, probe=probe)
