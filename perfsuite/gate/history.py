"""The history of each cell over the stored runs: dated changes and drift, and who accepted them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import msgspec

from perfsuite.errors import SettingError
from perfsuite.gate.baselines.accepted import EVERY_CELL, Accepted, Rename, Slowdown
from perfsuite.gate.baselines.select import choose_runs, trunk_of
from perfsuite.gate.git.find_base import find_trunk
from perfsuite.gate.git.repository import count_commits, find_top, is_shallow, read_log
from perfsuite.records.run_file import StoredRun, Unusable
from perfsuite.stats.trend import Trend, as_ratio, find_trend
from perfsuite.system.environment import Environment
from perfsuite.system.urls import AnyPath
from perfsuite.units import counted, short_commit

_WEEK = timedelta(weeks=1)
_Dated = tuple[datetime, StoredRun]


class Point(msgspec.Struct, frozen=True):
    """One stored run of a cell, or of the host, by its path, with the median of its rounds.

    It was made with its commit; outside of git, when it was saved. `is_accepted`: only a reviewed
    exception let the cell through there.
    """

    path: str
    commit: str | None
    made_at: datetime
    time_s: float
    is_accepted: bool

    def __str__(self) -> str:
        day = f"{self.made_at:%Y-%m-%d}"
        return day if self.commit is None else f"{short_commit(self.commit)} ({day})"


class Timeline(NamedTuple):
    """The runs of a cell in order, without the `num_elsewhere` that found another environment."""

    cell: str
    points: tuple[Point, ...]
    num_elsewhere: int = 0

    def weeks(self) -> list[float]:
        """Return when each point was made, in weeks from the first."""
        return [(point.made_at - self.points[0].made_at) / _WEEK for point in self.points]

    def times_s(self) -> list[float]:
        """Return the seconds of each point."""
        return [point.time_s for point in self.points]


def order_runs(runs: Iterable[StoredRun], log: Mapping[str, datetime]) -> list[_Dated]:
    """Return runs in the order of their commits, and when those were made, by git's log if any."""
    places = {commit: place for place, commit in enumerate(log)}
    ordered = sorted(runs, key=lambda run: (places.get(run.commit or "", -1), run.saved_at))
    return [(log.get(run.commit or "", run.saved_at), run) for run in ordered]


def timeline_of(cell: str, runs: Sequence[_Dated], accepted: Accepted) -> Timeline:
    """Return the runs of a cell, by all its names, in the environment of the newest one."""
    names = names_of(cell, accepted)
    found: list[tuple[Point, object]] = []
    for made_at, run in runs:
        if (name := next((name for name in names if name in run.cells), None)) is not None:
            is_accepted = run.stamp is not None and name in run.stamp.accepted
            stored = run.cells[name]
            point = Point(str(run.path), run.commit, made_at, stored.median_s, is_accepted)
            found.append((point, stored.fingerprint))
    return _timeline(cell, found)


def probe_timeline(runs: Sequence[_Dated]) -> Timeline:
    """Return how long the host itself took in the runs: the geometric mean of its probes."""
    found: list[tuple[Point, object]] = []
    for made_at, run in runs:
        if run.probe_s:
            time_s = geometric_mean(run.probe_s.values())
            point = Point(str(run.path), run.commit, made_at, time_s, is_accepted=False)
            found.append((point, sorted(run.probe_s)))
    return _timeline("the host", found)


def _timeline(cell: str, found: Sequence[tuple[Point, object]]) -> Timeline:
    points = tuple(point for point, environment in found if environment == found[-1][1])
    return Timeline(cell=cell, points=points, num_elsewhere=len(found) - len(points))


def names_of(cell: str, accepted: Accepted) -> list[str]:
    """Return the names that a cell has had, from that of today back, by renames old and new."""
    renames = [e for e in (*accepted.entries, *accepted.expired) if isinstance(e, Rename)]
    names = [cell]
    for name in names:
        names += [entry.cell for entry in renames if entry.to == name and entry.cell not in names]
    return names


class DatedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of level between the runs `before` and `after`; ratios have 95 % bounds.

    `num_commits` is None outside of git. A slowdown is recovered that was undone later.
    """

    ratio: float
    interval: tuple[float, float]
    before: Point
    after: Point
    num_commits: int | None
    accepted: str | None
    is_recovered: bool = msgspec.field(name="is_mended")

    @property
    def is_open(self) -> bool:
        """Whether it is a slowdown that is still there and was not accepted."""
        return self.ratio > 1 and self.accepted is None and not self.is_recovered


class DatedDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A drift over the whole history, since its first run, with bounds of 95 % confidence."""

    ratio_per_week: float
    interval: tuple[float, float]
    total_ratio: float
    since: Point
    accepted: str | None


class CellHistory(NamedTuple):
    """The changes of one cell, the oldest first, and its drift; too few runs have no trend."""

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


class StoredHistory(NamedTuple):
    """The stored runs of one environment, by their commits; `root` is None outside git."""

    root: Path | None
    runs: Sequence[_Dated]
    refused: Sequence[Unusable]
    accepted: Accepted

    def cells(self) -> list[str]:
        """Return the names of all cells that any run holds; of a renamed cell, that of today."""
        names = {name for _, run in self.runs for name in run.cells}
        return sorted(names.difference(*(names_of(name, self.accepted)[1:] for name in names)))

    def follow(self, cell: str | None, *, smallest: float) -> CellHistory:
        """Return what became of a cell, of the host for None, but for changes below `smallest`."""
        timeline = probe_timeline(self.runs)
        if cell is not None:
            timeline = timeline_of(cell, self.runs, self.accepted)
        trend = find_trend(timeline.weeks(), timeline.times_s(), smallest=smallest)
        if trend is None:
            return CellHistory(timeline=timeline, trend=None)
        reasons, drift_reason = find_reasons(timeline, trend, self.accepted)
        changes = [
            DatedChange(
                ratio=step.ratio,
                interval=(step.low, step.high),
                before=timeline.points[step.place - 1],
                after=timeline.points[step.place],
                num_commits=self._count_commits(*timeline.points[step.place - 1 : step.place + 1]),
                accepted=reason,
                is_recovered=step.ratio > 1 and trend.is_recovered(number, smallest=smallest),
            )
            for number, (step, reason) in enumerate(zip(trend.steps, reasons, strict=True), 1)
        ]
        drift, weeks = None, timeline.weeks()
        if (found := trend.drift) is not None:
            drift = DatedDrift(
                ratio_per_week=as_ratio(found.slope),
                interval=(as_ratio(found.low), as_ratio(found.high)),
                total_ratio=as_ratio(found.slope * (max(weeks) - min(weeks))),
                since=timeline.points[0],
                accepted=drift_reason,
            )
        return CellHistory(timeline=timeline, trend=trend, changes=tuple(changes), drift=drift)

    def _count_commits(self, before: Point, after: Point) -> int | None:
        if self.root is None or before.commit is None or after.commit is None:
            return None
        return count_commits(self.root, before.commit, after.commit)


def find_reasons(
    timeline: Timeline, trend: Trend, accepted: Accepted
) -> tuple[list[str | None], str | None]:
    """Return why each step of a cell was accepted, and why its drift; None if not.

    An exception, an expired one too, accepts a slowdown that began by the day it expired, where the
    lower bound of the slowdown is within its ratio. A drift goes on until the newest run.
    """
    names = (*names_of(timeline.cell, accepted), EVERY_CELL)
    slowdowns = [e for e in (*accepted.entries, *accepted.expired) if isinstance(e, Slowdown)]
    # Where several fit, the closest gives the reason.
    ours = (entry for entry in slowdowns if entry.cell in names)
    entries = sorted(ours, key=lambda entry: (entry.expires, entry.ratio))
    steps: list[str | None] = []
    for step, (start, end) in zip(trend.steps, pairwise(trend.bounds[1:]), strict=True):
        day, reason = timeline.points[start].made_at.date(), None
        if step.ratio > 1 and any(day <= entry.expires for entry in entries):
            reason = _reason(entries, day, step.low)
        elif step.ratio > 1 and any(point.is_accepted for point in timeline.points[start:end]):
            # A gate accepted the run then.
            reason = "by an exception that is no longer listed"
        steps.append(reason)
    drift = None
    if trend.drift is not None and trend.drift.slope > 0:
        weeks = timeline.weeks()
        least = as_ratio(trend.drift.low * (max(weeks) - min(weeks)))
        drift = _reason(entries, timeline.points[-1].made_at.date(), least)
    return steps, drift


def _reason(entries: list[Slowdown], day: date, least_ratio: float) -> str | None:
    found = (one for one in entries if day <= one.expires and least_ratio <= one.ratio)
    return next((one.reason for one in found), None)


def read_history(
    folder: Path,
    storage: AnyPath,
    here: Environment | str,
    accepted: Accepted,
    *,
    target: str | None,
    num_runs: int,
) -> StoredHistory:
    """Return the newest stored runs of an environment, `num_runs` at most, by `trunk_of`.

    Raises a SettingError in a shallow clone, which does not have the commits of all runs.
    """
    root, trunk = find_top(folder), trunk_of(folder, target)
    log: dict[str, datetime] = {}
    if root is not None and (branch := find_trunk(root, target)) is not None:
        log = read_log(root, branch)
        trunk = trunk._replace(is_in_history=log.__contains__)
    choice = choose_runs(storage, True, here, trunk)
    lost = [one for one in choice.refused if one.path != storage]  # which may not exist
    if root is not None and lost and is_shallow(root):
        left_out = f"{counted(len(lost), 'stored run')} left out, as {lost[0]}"
        raise SettingError(f"this clone is shallow, and {left_out}; run 'git fetch --unshallow'")
    runs = order_runs(choice.usable, log)[-num_runs:]
    return StoredHistory(root=root, runs=runs, refused=choice.refused, accepted=accepted)
