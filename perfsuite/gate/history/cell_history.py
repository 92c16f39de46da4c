"""What became of each cell over the stored runs: dated changes, drift, and who accepted them.

Must not know how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perfsuite.gate.baselines.accepted import Accepted
from perfsuite.gate.baselines.select import choose_runs, find_proposed
from perfsuite.gate.git.log import count_commits, read_lineage
from perfsuite.gate.git.repository import find_top, find_trunk
from perfsuite.gate.history.exceptions import find_excuses
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
class Change:
    """A change of level, and where it lies.

    Attributes:
        ratio: New level over old, with bounds of 95 % confidence.
        before: The last run of the old level.
        after: The first run of the new one.
        num_commits: That the second has and the first has not; None outside of git.
        excuse: Why it was accepted; None where nobody has said so.
        is_mended: Whether it is a slowdown that was undone later.
    """

    ratio: float
    interval: tuple[float, float]
    before: Point
    after: Point
    num_commits: int | None
    excuse: str | None
    is_mended: bool

    @property
    def is_open(self) -> bool:
        """Whether it is a slowdown that is still there and that nobody has accepted."""
        return self.ratio > 1 and self.excuse is None and not self.is_mended


@dataclass(frozen=True, kw_only=True)
class Creep:
    """A drift over the whole history.

    Attributes:
        ratio_per_week: What a week multiplies the time by, with bounds of 95 % confidence.
        total_ratio: What the whole history does.
        since: The first run.
        excuse: Why it was accepted; None where nobody has said so.
    """

    ratio_per_week: float
    interval: tuple[float, float]
    total_ratio: float
    since: Point
    excuse: str | None


@dataclass(frozen=True, kw_only=True)
class CellHistory:
    """What became of one cell.

    Attributes:
        course: Without commits and dates; None where too few runs hold the cell.
        changes: The oldest first.
        creep: Beside the changes; None where there is none.
    """

    timeline: Timeline
    trend: Trend | None
    changes: tuple[Change, ...] = ()
    creep: Creep | None = None

    @property
    def is_slower(self) -> bool:
        """Whether the cell became slower, still is, and nobody has accepted that."""
        crept = self.creep is not None and self.creep.total_ratio > 1 and self.creep.excuse is None
        return crept or any(change.is_open for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class StoredHistory:
    """All stored runs of one environment.

    Attributes:
        root: The checkout; None outside of git.
        runs: In the order of their commits, each with when its commit was made.
        refused: Why each other stored run is not among them.
        accepted: Reviewed exceptions.
    """

    root: Path | None
    runs: Sequence[tuple[datetime, StoredRun]]
    refused: Sequence[Unusable]
    accepted: Accepted

    def cells(self) -> list[str]:
        """The names of all cells that any run holds; of a renamed one, that of today."""
        names = {name for _, run in self.runs for name in run.cells}
        former = (names_of(name, self.accepted)[1:] for name in names)
        return sorted(names.difference(*former))

    def follow(self, cell: str, *, smallest: float) -> CellHistory:
        """Return what became of a cell; changes below `smallest`, 0.01 = 1 %, are not told."""
        return self._follow(timeline_of(cell, self.runs, self.accepted), smallest)

    def follow_host(self, *, smallest: float) -> CellHistory:
        """Return what became of the host itself, by its own probes."""
        return self._follow(probe_timeline(self.runs), smallest)

    def _follow(self, timeline: Timeline, smallest: float) -> CellHistory:
        weeks = timeline.weeks()
        trend = find_trend(weeks, timeline.times_s(), smallest=smallest)
        if trend is None:
            return CellHistory(timeline=timeline, trend=None)
        excuses = find_excuses(timeline, trend, self.accepted)
        changes = tuple(
            self._date(
                timeline,
                step,
                excuse=excuse,
                is_mended=step.ratio > 1 and trend.is_mended(level, smallest=smallest),
            )
            for level, (step, excuse) in enumerate(
                zip(trend.steps, excuses.steps, strict=True), start=1
            )
        )
        return CellHistory(
            timeline=timeline,
            trend=trend,
            changes=changes,
            creep=_creep(timeline, trend, max(weeks) - min(weeks), excuses.drift),
        )

    def _date(
        self, timeline: Timeline, step: LevelChange, *, excuse: str | None, is_mended: bool
    ) -> Change:
        before, after = timeline.points[step.place - 1], timeline.points[step.place]
        num_commits = None
        if self.root is not None and before.commit is not None and after.commit is not None:
            num_commits = count_commits(self.root, before.commit, after.commit)
        return Change(
            ratio=step.ratio,
            interval=(step.low, step.high),
            before=before,
            after=after,
            num_commits=num_commits,
            excuse=excuse,
            is_mended=is_mended,
        )


def _creep(timeline: Timeline, trend: Trend, num_weeks: float, excuse: str | None) -> Creep | None:
    drift = trend.drift
    if drift is None:
        return None
    return Creep(
        ratio_per_week=as_ratio(drift.slope),
        interval=(as_ratio(drift.low), as_ratio(drift.high)),
        total_ratio=as_ratio(drift.slope * num_weeks),
        since=timeline.points[0],
        excuse=excuse,
    )


def read_history(
    folder: Path, storage: AnyPath, fingerprint: str, accepted: Accepted, *, num_runs: int
) -> StoredHistory:
    """Return the stored runs of an environment that a change which begins here follows on.

    Args:
        folder: In a git checkout the runs are those of the upstream's default branch, as far as
            HEAD has it; outside of one all are.
        storage: Where the runs are stored.
        fingerprint: Of the environment.
        accepted: Reviewed exceptions.
        num_runs: The newest of them, at most.
    """
    root = find_top(folder)
    trunk = None if root is None else find_trunk(root)
    lineage = {} if root is None or trunk is None else read_lineage(root, trunk)
    is_in_history: Callable[[str], bool] | None = None if root is None else lineage.__contains__
    choice = choose_runs(
        storage,
        True,
        fingerprint,
        is_in_history=is_in_history,
        is_proposed=find_proposed(root or folder, storage, trunk),
    )
    return StoredHistory(
        root=root,
        runs=order_runs(choice.usable, lineage)[-num_runs:],
        refused=choice.refused,
        accepted=accepted,
    )
