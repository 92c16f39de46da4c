"""The stored times of one cell in the order of its commits, as far as they can be compared.

Must not know how changes are found in them, nor how they are told.
"""

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
        path: Of the run.
        commit: None outside of git.
        made_at: When its commit was made; outside of git, when the run was saved.
        time_s: Median of its rounds, per iteration.
        is_excused: Whether only a reviewed exception let the cell through there.
    """

    path: AnyPath
    commit: str | None
    made_at: datetime
    time_s: float
    is_excused: bool


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The runs of a cell.

    Attributes:
        cell: Its name, the newest where it was renamed.
        points: The oldest commit first, runs of the same commit as they were saved.
        num_elsewhere: Further runs, in which its ranks found another environment.
    """

    cell: str
    points: tuple[Point, ...]
    num_elsewhere: int = 0

    def weeks(self) -> list[float]:
        """When each point was made, in weeks from the first."""
        return [(point.made_at - self.points[0].made_at) / _WEEK for point in self.points]

    def times_s(self) -> list[float]:
        """Seconds of each point."""
        return [point.time_s for point in self.points]


def order_runs(
    runs: Iterable[StoredRun], lineage: Mapping[str, datetime]
) -> list[tuple[datetime, StoredRun]]:
    """Return runs in the order of their commits, each with when its commit was made.

    Args:
        runs: In any order.
        lineage: Commits with their times, parents first; empty outside of git.
    """
    places = {commit: place for place, commit in enumerate(lineage)}
    ordered = sorted(runs, key=lambda run: (places.get(run.commit or "", -1), run.saved_at))
    return [(lineage.get(run.commit or "", run.saved_at), run) for run in ordered]


def timeline_of(
    cell: str, runs: Sequence[tuple[datetime, StoredRun]], accepted: Accepted
) -> Timeline:
    """Return the runs of a cell, those under the names that it had before among them.

    Those count whose ranks found the environment that they found in the newest run.

    Args:
        cell: The name of today.
        runs: Of `order_runs`.
        accepted: Which names were accepted for others.
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
            is_excused=run.stamp is not None and name in run.stamp.accepted,
        )
        for made_at, run, name in found
        if run.cells[name].fingerprint in newest
    )
    return Timeline(cell=cell, points=points, num_elsewhere=len(found) - len(points))


def probe_timeline(runs: Sequence[tuple[datetime, StoredRun]]) -> Timeline:
    """Return what the host itself took in the runs: the geometric mean of its probes."""
    probed = [(made_at, run, run.probe_s) for made_at, run in runs if run.probe_s]
    newest = {tuple(sorted(probe_s)) for _, _, probe_s in probed[-1:]}
    points = tuple(
        Point(
            path=run.path,
            commit=run.commit,
            made_at=made_at,
            time_s=statistics.geometric_mean(probe_s.values()),
            is_excused=False,
        )
        for made_at, run, probe_s in probed
        if tuple(sorted(probe_s)) in newest
    )
    return Timeline(cell="the host", points=points, num_elsewhere=len(probed) - len(points))


def names_of(cell: str, accepted: Accepted) -> list[str]:
    """Return the names that a cell has had, the newest first.

    Args:
        cell: The name of today.
        accepted: Its renames, expired or not.
    """
    renames = [e for e in (*accepted.entries, *accepted.expired) if isinstance(e, Rename)]
    names = [cell]
    for name in names:
        names += [entry.cell for entry in renames if entry.to == name and entry.cell not in names]
    return names
