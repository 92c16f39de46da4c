from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.plugin.recorder import CLOCK, use_rank_clock


def make_clock() -> tuple[Callable[[], float], list[float]]:
    """The clock that a test's benchmark fixture is given, and where it is told what to show."""
    marks: list[pytest.MarkDecorator] = []
    item: Any = SimpleNamespace(
        config=SimpleNamespace(pluginmanager=SimpleNamespace(has_plugin=lambda name: True)),
        stash={},
        get_closest_marker=lambda name: None,
        add_marker=lambda mark, append: marks.append(mark),
    )
    use_rank_clock(item)
    return marks[0].kwargs["timer"], item.stash[CLOCK]


@given(st.lists(st.floats(min_value=0, allow_infinity=False, allow_nan=False)))
def test_a_pair_of_readings_differs_by_exactly_what_was_reported(
    durations: list[float],
) -> None:
    clock, reported = make_clock()
    measured = []

    for duration_s in durations:
        start = clock()
        reported.append(duration_s)
        measured.append(clock() - start)

    assert measured == durations


def test_a_clock_that_was_told_nothing_stands_still() -> None:
    clock, _ = make_clock()

    assert math.isclose(clock() - clock(), 0.0)


def test_the_clock_is_named_the_same_in_every_run() -> None:
    clock, _ = make_clock()

    assert clock.__name__ == "rank_clock"
