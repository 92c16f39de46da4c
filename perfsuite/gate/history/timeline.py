"""The stored times of one cell in the order of its commits, as far as they can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import geometric_mean
from typing import Final

from perfsuite.gate.baselines.accepted import Accepted, Rename
from perfsuite.records.run_file import StoredRun
from perfsuite.system.urls import AnyPath

_WEEK: Final = timedelta(weeks=1)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One stored run of a cell, or of the host.

    Attributes:
        made_at: When its commit was made; outside of git, when the run was saved.
        time_s: Median of its rounds, per iteration.
        is_accepted: Whether only a reviewed exception let the cell through there.
    """

    path: AnyPath
    commit: str | None
    made_at: datetime
    time_s: float
    is_accepted: bool


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The runs of a cell, by its newest name, in the order of `order_runs`.

    `num_elsewhere` counts further runs, in which its ranks found another environment.
    """

    cell: str
    points: tuple[Point, ...]
    num_elsewhere: int = 0

    def weeks(self) -> list[float]:
        """Return when each point was made, in weeks from the first."""
        return [(point.made_at - self.points[0].made_at) / _WEEK for point in self.points]

    def times_s(self) -> list[float]:
        """Return the seconds of each point."""
        return [point.time_s for point in self.points]


def order_runs(
    runs: Iterable[StoredRun], log: Mapping[str, datetime]
) -> list[tuple[datetime, StoredRun]]:
    """Return runs in the order of their commits, each with when its commit was made.

    `log` is that of `read_log`, and empty outside of git.
    """
    places = {commit: place for place, commit in enumerate(log)}
    ordered = sorted(runs, key=lambda run: (places.get(run.commit or "", -1), run.saved_at))
    return [(log.get(run.commit or "", run.saved_at), run) for run in ordered]


def timeline_of(
    cell: str, runs: Sequence[tuple[datetime, StoredRun]], accepted: Accepted
) -> Timeline:
    """Return the runs of a cell under the name of today and its former names.

    A run counts where its ranks found the same environment as in the newest run.
    """
    names = names_of(cell, accepted)
    found: list[tuple[Point, str | None]] = []
    for made_at, run in runs:
        name = next((name for name in names if name in run.cells), None)
        if name is not None:
            is_accepted = run.stamp is not None and name in run.stamp.accepted
            point = _point(made_at, run, run.cells[name].median_s, is_accepted)
            found.append((point, run.cells[name].fingerprint))
    return _timeline(cell, found)


def probe_timeline(runs: Sequence[tuple[datetime, StoredRun]]) -> Timeline:
    """Return how long the host itself took in the runs: the geometric mean of its probes."""
    found = [
        (_point(made_at, run, geometric_mean(run.probe_s.values()), False), sorted(run.probe_s))
        for made_at, run in runs
        if run.probe_s
    ]
    return _timeline("the host", found)


def _point(made_at: datetime, run: StoredRun, time_s: float, is_accepted: bool) -> Point:
    return Point(
        path=run.path, commit=run.commit, made_at=made_at, time_s=time_s, is_accepted=is_accepted
    )


def _timeline(cell: str, found: Sequence[tuple[Point, object]]) -> Timeline:
    """Return the points with the environment of the newest one."""
    points = tuple(point for point, environment in found if environment == found[-1][1])
    return Timeline(cell=cell, points=points, num_elsewhere=len(found) - len(points))


def names_of(cell: str, accepted: Accepted) -> list[str]:
    """Return the names that a cell has had, from that of today back, by renames old and new."""
    renames = [e for e in (*accepted.entries, *accepted.expired) if isinstance(e, Rename)]
    names = [cell]
    for name in names:
        names += [entry.cell for entry in renames if entry.to == name and entry.cell not in names]
    return names
