from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from perfsuite.plugin.recorder import rank_clock_of


@given(st.lists(st.floats(min_value=0, allow_infinity=False, allow_nan=False)))
def test_a_pair_of_readings_differs_by_exactly_what_was_reported(
    durations: list[float],
) -> None:
    reported: list[float] = []
    clock = rank_clock_of(reported)
    measured = []

    for duration_s in durations:
        start = clock()
        reported.append(duration_s)
        measured.append(clock() - start)

    assert measured == durations


def test_a_clock_that_was_told_nothing_stands_still() -> None:
    clock = rank_clock_of([])

    assert math.isclose(clock() - clock(), 0.0)


def test_the_clock_is_named_the_same_in_every_run() -> None:
    assert rank_clock_of([]).__name__ == "rank_clock"
