"""The history of each cell over the stored runs: dated changes and drift, and who accepted them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perfsuite.gate.baselines.accepted import Accepted
from perfsuite.gate.baselines.select import choose_runs, trunk_rules
from perfsuite.gate.git.log import count_commits, read_log
from perfsuite.gate.git.repository import find_top, find_trunk
from perfsuite.gate.history.exceptions import find_reasons
from perfsuite.gate.history.timeline import (
    Point,
    Timeline,
    names_of,
    order_runs,
    probe_timeline,
    timeline_of,
)
from perfsuite.records.run_file import StoredRun, Unusable
from perfsuite.stats.trend import LevelChange, Trend, as_ratio, find_trend
from perfsuite.system.urls import AnyPath


@dataclass(frozen=True, kw_only=True)
class DatedChange:
    """A change of level between the runs `before` and `after`; ratios have 95 % bounds.

    Attributes:
        num_commits: Commits that the second has and the first has not; None outside of git.
        accepted: Why it was accepted; None where it was not.
        is_recovered: Whether it is a slowdown that was undone later.
    """

    ratio: float
    interval: tuple[float, float]
    before: Point
    after: Point
    num_commits: int | None
    accepted: str | None
    is_recovered: bool

    @property
    def is_open(self) -> bool:
        """Whether it is a slowdown that is still there and was not accepted."""
        return self.ratio > 1 and self.accepted is None and not self.is_recovered


@dataclass(frozen=True, kw_only=True)
class DatedDrift:
    """A drift over the whole history, since its first run, with bounds of 95 % confidence."""

    ratio_per_week: float
    interval: tuple[float, float]
    total_ratio: float
    since: Point
    accepted: str | None


@dataclass(frozen=True, kw_only=True)
class CellHistory:
    """The changes of one cell, the oldest first, and its drift beside them.

    `trend` is both without commits and dates; None where too few runs hold the cell.
    """

    timeline: Timeline
    trend: Trend | None
    changes: tuple[DatedChange, ...] = ()
    drift: DatedDrift | None = None

    @property
    def is_slower(self) -> bool:
        """Whether the cell became slower, still is, and that was not accepted."""
        drift = self.drift
        is_drifting = drift is not None and drift.total_ratio > 1 and drift.accepted is None
        return is_drifting or any(change.is_open for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class StoredHistory:
    """All stored runs of one environment, and why each other run was refused.

    Runs are in the order of their commits, each with when its commit was made. `root` is None
    outside of git.
    """

    root: Path | None
    runs: Sequence[tuple[datetime, StoredRun]]
    refused: Sequence[Unusable]
    accepted: Accepted

    def cells(self) -> list[str]:
        """Return the names of all cells that any run holds; of a renamed cell, that of today."""
        names = {name for _, run in self.runs for name in run.cells}
        former = (names_of(name, self.accepted)[1:] for name in names)
        return sorted(names.difference(*former))

    def follow(self, cell: str, *, smallest: float) -> CellHistory:
        """Return what became of a cell, without changes below `smallest`, 0.01 = 1 %."""
        return self._follow(timeline_of(cell, self.runs, self.accepted), smallest)

    def follow_host(self, *, smallest: float) -> CellHistory:
        """Return what became of the host itself, by its own probes."""
        return self._follow(probe_timeline(self.runs), smallest)

    def _follow(self, timeline: Timeline, smallest: float) -> CellHistory:
        trend = find_trend(timeline.weeks(), timeline.times_s(), smallest=smallest)
        if trend is None:
            return CellHistory(timeline=timeline, trend=None)
        reasons = find_reasons(timeline, trend, self.accepted)
        changes = tuple(
            self._date(
                timeline,
                step,
                accepted=reason,
                is_recovered=step.ratio > 1 and trend.is_recovered(level, smallest=smallest),
            )
            for level, (step, reason) in enumerate(
                zip(trend.steps, reasons.steps, strict=True), start=1
            )
        )
        drift = _date_drift(timeline, trend, reasons.drift)
        return CellHistory(timeline=timeline, trend=trend, changes=changes, drift=drift)

    def _date(
        self, timeline: Timeline, step: LevelChange, *, accepted: str | None, is_recovered: bool
    ) -> DatedChange:
        before, after = timeline.points[step.place - 1], timeline.points[step.place]
        num_commits = None
        if self.root is not None and before.commit is not None and after.commit is not None:
            num_commits = count_commits(self.root, before.commit, after.commit)
        return DatedChange(
            ratio=step.ratio,
            interval=(step.low, step.high),
            before=before,
            after=after,
            num_commits=num_commits,
            accepted=accepted,
            is_recovered=is_recovered,
        )


def _date_drift(timeline: Timeline, trend: Trend, accepted: str | None) -> DatedDrift | None:
    drift, weeks = trend.drift, timeline.weeks()
    if drift is None:
        return None
    return DatedDrift(
        ratio_per_week=as_ratio(drift.slope),
        interval=(as_ratio(drift.low), as_ratio(drift.high)),
        total_ratio=as_ratio(drift.slope * (max(weeks) - min(weeks))),
        since=timeline.points[0],
        accepted=accepted,
    )


def read_history(
    folder: Path, storage: AnyPath, fingerprint: str, accepted: Accepted, *, num_runs: int
) -> StoredHistory:
    """Return the newest stored runs of an environment, `num_runs` at most, by `trunk_rules`."""
    root = find_top(folder)
    trunk = None if root is None else find_trunk(root)
    log = {} if root is None or trunk is None else read_log(root, trunk)
    choice = choose_runs(storage, True, fingerprint, **trunk_rules(folder, storage, log))
    return StoredHistory(
        root=root,
        runs=order_runs(choice.usable, log)[-num_runs:],
        refused=choice.refused,
        accepted=accepted,
    )
