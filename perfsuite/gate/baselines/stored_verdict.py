"""What stored runs say of a cell, which fails none: its counts exactly, its time where clear."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from perfsuite.errors import StorageError
from perfsuite.gate.arms.arm import Say
from perfsuite.gate.baselines.screen import MIN_SESSIONS, NUM_SEARCHED, Screener
from perfsuite.gate.baselines.select import Selector, Trunk, choose_runs
from perfsuite.gate.git.changes import is_code_changed
from perfsuite.gate.git.find_base import read_lineage
from perfsuite.gate.git.repository import Base, changed_files
from perfsuite.gate.judge.counts import compare_counts
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.records.run_file import StoredCell, StoredRun
from perfsuite.records.verdict import CellVerdict
from perfsuite.system.environment import Environment
from perfsuite.system.urls import AnyPath


@dataclass(kw_only=True)
class History:
    """What is stored of the base and its ancestors, and the cells of this session so far."""

    runs: Sequence[StoredRun]  # of this environment, that of the newest commit last
    refused: tuple[str, ...]
    probe: Callable[[], Mapping[str, float]]  # of the host, when the first cell is screened
    behind: Mapping[str, int] = field(default_factory=dict)  # the base, by commit
    is_of_base: Callable[[str], bool] = lambda commit: False
    far_slower: dict[str, str] = field(default_factory=dict)  # cells beyond the limit, in words

    @cached_property
    def _screener(self) -> Screener:
        return Screener(self.runs, self.probe())

    def can_screen(self, name: str) -> bool:
        """Whether enough runs hold the cell to judge its time, the base's own among them."""
        is_known = sum(name in run.cells for run in self.runs) >= MIN_SESSIONS
        return is_known and self._find_own(name) is not None

    def _find_own(self, name: str) -> StoredRun | None:
        newest = next((run for run in reversed(self.runs) if name in run.cells), None)
        return newest if newest is not None and self._is_own(newest) else None

    def _is_own(self, run: StoredRun) -> bool:
        return run.commit is not None and self.is_of_base(run.commit)

    def find_increases(
        self, name: str, cell: StoredCell, policy: CellPolicy, say: Say
    ) -> str | None:
        """Return which counts grew against the base's own run, in words; None where none did."""
        own = self._find_own(name)
        if own is None or own.cells[name].num_samples != cell.num_samples:
            return None
        slacks, most_ratio = policy.slacks, policy.accepted_increase
        compared = compare_counts(own.cells[name], cell, slacks=slacks, accepted_ratio=most_ratio)
        if compared.decreases:
            shrunk = "; ".join(map(str, compared.decreases))
            advice = "store a new run (--benchmark-save=NAME)"
            say(f"{name}: {shrunk}; {advice}, or an increase up to the old one passes")
        for reason in compared.unavailable:
            say(f"{name}: {reason} (the base's stored run)")
        return "; ".join(map(str, compared.increases)) or None

    def screen(
        self, name: str, cell: StoredCell, digest: str | None, policy: CellPolicy, say: Say
    ) -> CellVerdict | None:
        """Return PASS or IMPROVED where the cell is clearly fine; else None, and `say` why."""
        screened = self._screener.screen(name, cell, digest, policy)
        newest, reason = screened.newest, screened.reason
        if newest is not None and not self._is_own(newest):
            reason = "no stored run that can be compared is of the base itself"
            newest = None
        if newest is None or screened.word is None:
            say(f"{name} goes to the judge: {reason}")
            low, _ = screened.interval or (0.0, 0.0)
            if newest is not None and low > 1 + policy.limit:
                self.far_slower[name] = reason.partition(";")[0]
            return None
        behind = self.behind.get(newest.commit or "", 0)
        place = f"{behind} commits behind the base" if behind else "of the base itself"
        return CellVerdict(
            name=name,
            word=screened.word,
            by="screen",
            ratio=screened.ratio,
            interval=screened.interval,
            tolerance=policy.tolerance,
            limit=policy.limit,
            reason=screened.reason,
            compared_with=f"screen: {screened.num_sessions} runs, newest {place}",
        )


def read_history(
    root: Path,
    storage: AnyPath | None,
    selector: Selector,
    here: Environment,
    *,
    base: Base | None,
    probe: Callable[[], Mapping[str, float]],
) -> History:
    """Return the stored runs of the base and this environment, as many as are needed.

    `storage` is None for a place that only pytest-benchmark reads; `selector` is the value of
    `--benchmark-compare`, a SettingError where it is invalid.
    """
    if base is None or storage is None:
        why = "the runs in Elasticsearch, which only pytest-benchmark reads"
        if base is None:
            why = "stored runs: without a base in git nothing says which of them are the base's"
        return History(runs=(), refused=(why,), probe=probe)
    revision, behind = base.revision, read_lineage(root, base.revision)
    runs: Sequence[StoredRun] = ()
    try:
        trunk = Trunk(behind.__contains__, changed_files(root, revision, "HEAD"))
        chosen = choose_runs(storage, selector, here, trunk, max_sessions=NUM_SEARCHED)
        refused = tuple(map(str, chosen.refused))
        runs = sorted(chosen.usable, key=lambda run: -behind[run.commit or ""])  # then by time
    except StorageError as error:
        refused = (str(error),)

    @cache
    def is_of_base(commit: str) -> bool:
        return commit == revision or not is_code_changed(root, commit, revision)

    return History(runs=runs, refused=refused, probe=probe, behind=behind, is_of_base=is_of_base)
