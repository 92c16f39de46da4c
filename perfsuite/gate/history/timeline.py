"""The stored times of one cell in the order of its commits, as far as they can be compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perfsuite.gate.baselines.accepted import Accepted, Rename
from perfsuite.records.run_file import StoredRun
from perfsuite.system.urls import AnyPath

_WEEK: Final = timedelta(weeks=1)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One stored run of a cell.

    Attributes:
        commit: None outside of git.
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
    """The runs of a cell.

    Attributes:
        cell: Its newest name.
        points: The oldest commit first; runs of one commit in the order they were saved.
        num_elsewhere: Further runs, in which its ranks found another environment.
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
    found = [
        (made_at, run, name)
        for made_at, run in runs
        for name in [next((name for name in names if name in run.cells), None)]
        if name is not None
    ]
    newest = {run.cells[name].fingerprint for _, run, name in found[-1:]}
    points = tuple(
        Point(
            path=run.path,
            commit=run.commit,
            made_at=made_at,
            time_s=run.cells[name].median_s,
            is_accepted=run.stamp is not None and name in run.stamp.accepted,
        )
        for made_at, run, name in found
        if run.cells[name].fingerprint in newest
    )
    return Timeline(cell=cell, points=points, num_elsewhere=len(found) - len(points))


def probe_timeline(runs: Sequence[tuple[datetime, StoredRun]]) -> Timeline:
    """Return how long the host itself took in the runs: the geometric mean of its probes."""
    probed = [(made_at, run, run.probe_s) for made_at, run in runs if run.probe_s]
    newest = {tuple(sorted(probe_s)) for _, _, probe_s in probed[-1:]}
    points = tuple(
        Point(
            path=run.path,
            commit=run.commit,
            made_at=made_at,
            time_s=statistics.geometric_mean(probe_s.values()),
            is_accepted=False,
        )
        for made_at, run, probe_s in probed
        if tuple(sorted(probe_s)) in newest
    )
    return Timeline(cell="the host", points=points, num_elsewhere=len(probed) - len(points))


def names_of(cell: str, accepted: Accepted) -> list[str]:
    """Return the names that a cell has had, from that of today back, by renames old and new."""
    renames = [e for e in (*accepted.entries, *accepted.expired) if isinstance(e, Rename)]
    names = [cell]
    for name in names:
        names += [entry.cell for entry in renames if entry.to == name and entry.cell not in names]
    return names
