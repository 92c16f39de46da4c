"""Intervals of time: what they cover, and the overlap of two kinds of work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.worker.measure.operators import covered, overlap

INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda one: (one[0], one[0] + one[1]))
)


def steps_of(intervals: list[tuple[int, int]]) -> set[int]:
    """The unit steps that the intervals cover."""
    return {step for start, end in intervals for step in range(start, end)}


@given(INTERVALS)
def test_time_that_several_intervals_cover_counts_once(intervals: list[tuple[int, int]]) -> None:
    assert covered(intervals) == len(steps_of(intervals))


@given(INTERVALS, INTERVALS)
def test_the_overlap_is_the_time_that_both_cover(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    shared = overlap(one, other)

    assert shared == len(steps_of(one) & steps_of(other))


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ([(0, 10)], [(2, 3), (5, 7)], 3),
        ([(0, 2), (4, 6)], [(1, 5)], 2),
        ([(0, 2)], [(2, 4)], 0),
        ([], [(2, 4)], 0),
    ],
)
def test_overlaps_by_hand(
    one: list[tuple[float, float]], other: list[tuple[float, float]], shared: float
) -> None:
    assert overlap(one, other) == shared
