"""What stored runs say of a cell: of its counts exactly, of its time where that is clear.

These two steps of the gate cost nothing but the session's own measurement. They fail no cell: what
they do not let pass goes to pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from perfsuite.errors import StorageError
from perfsuite.gate.baselines.screen import MAX_SESSIONS, MIN_SESSIONS, Candidate, Screener
from perfsuite.gate.baselines.select import choose_runs, trunk_rules
from perfsuite.gate.judge.counts import Counted, compare_counts
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.records.run_file import StoredRun
from perfsuite.records.verdict import CellVerdict
from perfsuite.system.urls import AnyPath


@dataclass(kw_only=True)
class History:
    """The usable runs of this environment, the newest last, and the cells of this session so far.

    `refused` says why each other stored run is not among them; `probe` measures the host when the
    first cell is screened.
    """

    runs: Sequence[StoredRun]
    refused: tuple[str, ...]
    probe: Callable[[], Mapping[str, float]]

    @cached_property
    def _screener(self) -> Screener:
        return Screener(self.runs, self.probe())

    def can_screen(self, name: str) -> bool:
        """Whether enough runs hold the cell to judge its time."""
        return sum(name in run.cells for run in self.runs) >= MIN_SESSIONS

    def find_increases(
        self,
        name: str,
        head: Counted,
        num_samples: int | None,
        policy: CellPolicy,
        say: Callable[[str], None],
    ) -> str | None:
        """Return which counts grew against the newest run, in words; None where none did.

        The run may be of an older commit than the base, so it fails no cell by itself. A decrease
        calls for a new stored run, because the old one would let the count grow again unseen.
        `say` shows a line.
        """
        base = next((run.cells[name] for run in reversed(self.runs) if name in run.cells), None)
        if base is None or base.num_samples != num_samples:
            return None
        compared = compare_counts(
            base,
            head,
            slacks=policy.slacks,
            accepted_ratio=policy.accepted_increase,
        )
        if compared.decreases:
            shrunk = "; ".join(map(str, compared.decreases))
            say(
                f"{name}: {shrunk}; store a new run (--benchmark-save=NAME), or an increase up to "
                "the old one passes"
            )
        for reason in compared.unavailable:
            say(f"{name}: {reason} (the newest stored run)")
        return "; ".join(map(str, compared.increases)) or None

    def screen(self, candidate: Candidate, say: Callable[[str], None]) -> CellVerdict | None:
        """Return PASS or IMPROVED where the cell is clearly fine; else None, and `say` why."""
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
    probe: Callable[[], Mapping[str, float]],
) -> History:
    """Return the stored runs of the base and this environment, as many as are needed.

    `storage` is None for a place that only pytest-benchmark reads; `selector` is the value of
    `--benchmark-compare`. Raises a SettingError for an invalid one.
    """
    runs: tuple[StoredRun, ...] = ()
    if storage is None:
        refused: tuple[str, ...] = ("the runs in Elasticsearch, which only pytest-benchmark reads",)
    else:
        rules = trunk_rules(root, storage)
        try:
            chosen = choose_runs(storage, selector, fingerprint, **rules, max_sessions=MAX_SESSIONS)
            runs, refused = chosen.usable, tuple(map(str, chosen.refused))
        except StorageError as error:
            refused = (str(error),)
    return History(runs=runs, refused=refused, probe=probe)
