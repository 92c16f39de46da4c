"""Which slowdowns were accepted: by exceptions that had not expired and were large enough."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfsuite.gate.baselines.accepted import Accepted, Removal, Rename, Slowdown
from perfsuite.gate.history import Point, Timeline, find_reasons
from perfsuite.stats.trend import find_trend

CELL = "b.py::test"
NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
DAYS_PER_LEVEL = 20
# Of the first run at each level after the first.
FIRST_STEP, SECOND_STEP, THIRD_STEP = (
    datetime.date(2026, *day) for day in ((1, 21), (2, 10), (3, 2))
)
NEVER = datetime.date(2999, 1, 1)
DAY = datetime.timedelta(days=1)


def exception(
    ratio: float,
    expires: datetime.date = NEVER,
    reason: str = "checks its input",
    cell: str = CELL,
) -> Slowdown:
    return Slowdown(cell=cell, ratio=ratio, reason=reason, expires=expires)


def reasons_of(
    levels: Sequence[float],
    *entries: Slowdown | Rename | Removal,
    a_week: float = 1.0,
    accepted_at: int | None = None,
) -> SimpleNamespace:
    """Find the reasons for a cell that stayed at each level for twenty days, a run a day."""
    numbers = random.Random(2)
    points = tuple(
        Point(
            path=Path("run"),
            commit=None,
            made_at=NOON + number * DAY,
            time_s=level * a_week ** (number / 7) * (1 + numbers.uniform(-0.002, 0.002)),
            is_accepted=number == accepted_at,
        )
        for number, level in enumerate(level for level in levels for _ in range(DAYS_PER_LEVEL))
    )
    timeline = Timeline(cell=CELL, points=points)
    trend = find_trend(timeline.weeks(), timeline.times_s())
    assert trend is not None
    assert len(trend.steps) == sum(old != new for old, new in pairwise(levels))
    # As if read long after everything: what has expired by now is looked at all the same.
    steps, drift = find_reasons(timeline, trend, Accepted(expired=entries))
    return SimpleNamespace(steps=tuple(steps), drift=drift)


@pytest.mark.parametrize(("ratio", "reason"), [(1.079, None), (1.09, "checks its input")])
def test_a_slowdown_is_accepted_up_to_the_ratio_of_an_exception(
    ratio: float, reason: str | None
) -> None:
    assert reasons_of([1.0, 1.085], exception(ratio)).steps == (reason,)
    assert reasons_of([1.0, 1.085], exception(ratio, cell="*")).steps == (reason,)
    assert reasons_of([1.0, 1.085], exception(ratio, cell="b.py::other")).steps == (None,)


@pytest.mark.parametrize(
    ("expires", "reason"), [(FIRST_STEP, "checks its input"), (FIRST_STEP - DAY, None)]
)
def test_an_exception_accepts_what_happened_up_to_and_on_the_day_it_expired(
    expires: datetime.date, reason: str | None
) -> None:
    assert reasons_of([1.0, 1.08], exception(1.09, expires)).steps == (reason,)


def test_an_exception_that_expired_in_between_accepts_the_first_of_two_slowdowns() -> None:
    entry = exception(1.5, datetime.date(2026, 1, 25))

    assert reasons_of([1.0, 1.08, 1.08 * 1.07], entry).steps == ("checks its input", None)


def test_an_exception_in_force_accepts_each_slowdown_within_its_ratio() -> None:
    assert reasons_of([1.0, 1.08, 1.08 * 1.07], exception(1.09)).steps == ("checks its input",) * 2


def test_a_slowdown_that_comes_again_is_accepted_again() -> None:
    found = reasons_of([1.0, 1.08, 1.0, 1.08], exception(1.09))

    assert found.steps == ("checks its input", None, "checks its input")


def test_a_slowdown_above_the_ratio_is_not_accepted_after_an_improvement_either() -> None:
    assert reasons_of([1.0, 1.08, 0.9, 1.0], exception(1.09)).steps == (
        "checks its input",
        None,
        None,
    )


def test_each_slowdown_is_accepted_by_the_exception_that_lasts_for_it() -> None:
    late = exception(1.09, THIRD_STEP, "late")
    early = exception(1.09, FIRST_STEP, "early")

    assert reasons_of([1.0, 1.08, 1.08 * 1.07], late, early).steps == ("early", "late")


def test_the_smallest_exception_that_is_large_enough_gives_the_reason() -> None:
    large, small = exception(1.15, reason="large"), exception(1.05, reason="small")

    assert reasons_of([1.0, 1.04, 1.04 * 1.14], large, small).steps == ("small", "large")


def test_what_was_accepted_under_a_former_name_stays_accepted() -> None:
    rename = Rename(cell="b.py::old", to=CELL, reason="r", expires=FIRST_STEP)
    entry = Slowdown(cell="b.py::old", ratio=1.09, reason="of old", expires=NEVER)

    assert reasons_of([1.0, 1.08], rename, entry).steps == ("of old",)


def test_exceptions_of_another_kind_or_cell_accept_nothing() -> None:
    others = (
        Removal(cell=CELL, reason="r", expires=NEVER),
        Slowdown(cell="b.py::other", ratio=2.0, reason="r", expires=NEVER),
    )

    assert reasons_of([1.0, 1.08], *others).steps == (None,)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ((), "by an exception that is no longer listed"),
        ((exception(1.09, FIRST_STEP),), "by an exception that is no longer listed"),
        ((exception(1.05),), None),
    ],
)
def test_a_run_that_needed_an_exception_says_so_unless_one_in_force_is_too_small(
    entries: tuple[Slowdown, ...], reason: str | None
) -> None:
    found = reasons_of([1.0, 1.08, 1.08 * 1.07], *entries, accepted_at=2 * DAYS_PER_LEVEL)

    assert found.steps[1] == reason


# --- drifts ---


# Of the two levels together, 40 days at 1 % a week are 5.7 %.
LAST = FIRST_STEP + 19 * DAY


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (exception(1.06, LAST), "checks its input"),
        (exception(1.04, LAST), None),
        (exception(1.06, LAST - DAY), None),
    ],
)
def test_a_drift_is_accepted_by_what_reaches_it_and_holds_until_the_newest_run(
    entry: Slowdown, reason: str | None
) -> None:
    assert reasons_of([1.0, 1.0], entry, a_week=1.01).drift == reason


@pytest.mark.parametrize(("ratio", "reason"), [(1.04, None), (1.09, "checks its input")])
def test_a_step_and_a_drift_are_accepted_each_by_itself(ratio: float, reason: str | None) -> None:
    step = exception(1.09, FIRST_STEP)

    found = reasons_of([1.0, 1.08], step, exception(ratio), a_week=1.01)

    assert (found.steps, found.drift) == (("checks its input",), reason)


def test_what_becomes_faster_needs_no_exception() -> None:
    found = reasons_of([1.0, 0.9], exception(2.0), a_week=0.99)

    assert (found.steps, found.drift) == ((None,), None)
