"""The stored times of one cell in the order of its commits."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest

from perfsuite.gate.baselines.accepted import Accepted, Rename
from perfsuite.gate.history import names_of, order_runs, probe_timeline, timeline_of
from perfsuite.records.run_file import RunStamp, StoredCell, StoredRun

CELL = "b.py::test"
NOON = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
EXPIRES = datetime.date(2999, 1, 1)
NOTHING = Accepted()


def run(
    name: str,
    *,
    days: float = 0.0,
    commit: str | None = None,
    cell: str = CELL,
    time_s: float = 1.0,
    **changes: Any,
) -> StoredRun:
    stamp = RunStamp(
        fingerprint="f",
        probe_s=changes.get("probe_s"),
        num_failed=0,
        is_pull_request=False,
        verdicts={},
        accepted=changes.get("accepted", ()),
    )
    stored = StoredCell(median_s=time_s, fingerprint=changes.get("fingerprint"))
    return StoredRun(
        path=Path(name),
        saved_at=NOON + days * DAY,
        commit=commit,
        is_dirty=False,
        stamp=stamp,
        cells={cell: stored},
    )


def named(runs: list[tuple[datetime.datetime, StoredRun]]) -> list[str]:
    return [one.path.name for _, one in runs]


def test_runs_follow_their_commits_and_then_their_days() -> None:
    log = {"old": NOON, "new": NOON + 2 * DAY}
    runs = [
        run("measured late", days=9, commit="old"),
        run("again", days=4, commit="new"),
        run("new", days=3, commit="new"),
        run("old", days=1, commit="old"),
    ]

    ordered = order_runs(runs, log)

    assert named(ordered) == ["old", "measured late", "new", "again"]
    assert [made_at for made_at, _ in ordered] == [NOON, NOON, NOON + 2 * DAY, NOON + 2 * DAY]


def test_outside_of_git_runs_follow_their_days() -> None:
    ordered = order_runs([run("b", days=2), run("a", days=1, commit="unknown")], {})

    assert named(ordered) == ["a", "b"]
    assert ordered[0][0] == NOON + DAY


def test_a_run_of_the_first_day_there_is_has_a_place() -> None:
    east = datetime.timezone(datetime.timedelta(hours=14))
    first = dataclasses.replace(run("a"), saved_at=datetime.datetime(1, 1, 1, tzinfo=east))

    timeline = timeline_of(CELL, order_runs([run("b"), first], {}), NOTHING)

    assert timeline.weeks()[0] == 0.0
    assert timeline.weeks()[1] > 100_000


def test_a_timeline_counts_weeks_from_its_first_run() -> None:
    ordered = order_runs([run("a"), run("b", days=7, time_s=2.0), run("c", days=10.5)], {})

    timeline = timeline_of(CELL, ordered, NOTHING)

    assert timeline.weeks() == [0.0, 1.0, 1.5]
    assert timeline.times_s() == [1.0, 2.0, 1.0]


def test_a_cell_that_its_ranks_ran_elsewhere_is_counted_and_left_out() -> None:
    ordered = order_runs(
        [
            run("a", days=1, fingerprint="old torch"),
            run("b", days=2, fingerprint="torch"),
            run("c", days=3, cell="another"),
            run("d", days=4, fingerprint="torch"),
        ],
        {},
    )

    timeline = timeline_of(CELL, ordered, NOTHING)

    assert [point.path for point in timeline.points] == ["b", "d"]
    assert timeline.num_elsewhere == 1


def test_a_renamed_cell_keeps_its_history() -> None:
    renames = [
        Rename(cell="first", to="second", reason="r", expires=EXPIRES),
        Rename(cell="second", to=CELL, reason="r", expires=EXPIRES),
    ]
    accepted = Accepted(entries=(renames[1],), expired=(renames[0],))
    ordered = order_runs([run("a", cell="first"), run("b", cell="second"), run("c")], {})

    assert names_of(CELL, accepted) == [CELL, "second", "first"]
    assert len(timeline_of(CELL, ordered, accepted).points) == 3


def test_names_that_go_in_a_circle_end() -> None:
    circle = [
        Rename(cell="a", to="b", reason="r", expires=EXPIRES),
        Rename(cell="b", to="a", reason="r", expires=EXPIRES),
    ]

    assert names_of("a", Accepted(entries=tuple(circle))) == ["a", "b"]


def test_the_host_is_as_fast_as_its_probes_on_average() -> None:
    ordered = order_runs(
        [
            run("a", days=1, probe_s={"cpu": 9.0}),
            run("b", days=2),
            run("c", days=3, probe_s={"cpu": 1.0, "memory": 4.0}),
        ],
        {},
    )

    host = probe_timeline(ordered)

    assert host.times_s() == [pytest.approx(2.0)]
    assert host.num_elsewhere == 1
