"""When an accelerator is warm: from the seconds and the state of its iterations so far."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perfsuite.worker.measure.rounds import has_warmed_up


def num_until_warm(durations_s: Iterable[float], states: Iterable[object]) -> int:
    spent_s: list[float] = []
    seen: list[object] = []
    for seconds, state in zip(durations_s, states, strict=False):
        spent_s.append(seconds)
        seen.append(state)
        if has_warmed_up(spent_s, seen):
            break
    return len(spent_s)


def test_a_clock_that_is_still_rising_is_waited_for() -> None:
    steps_s = [0.3, 0.2, 0.15, 0.12, 0.1, 0.1, 0.1]

    assert num_until_warm(steps_s, [1024] * 7) == 6


def test_quick_steps_are_repeated_until_half_a_second_has_passed() -> None:
    assert num_until_warm([0.01] * 100, [1024] * 100) == 50


def test_a_loss_scale_that_falls_skips_steps_and_is_waited_for() -> None:
    falling = [2**exponent for exponent in range(16, 4, -1)]

    assert num_until_warm([0.2] * 20, [*falling, *[16] * 8]) == len(falling) + 3


def test_a_graph_that_is_compiled_late_is_waited_for() -> None:
    assert num_until_warm([5.0, 0.2, 0.2, 0.2, 0.2, 0.2], [1, 1, 2, 2, 2, 2]) == 5


def test_what_never_settles_is_timed_after_ten_seconds() -> None:
    assert num_until_warm([1.0, 2.0] * 20, range(40)) == 7
    assert num_until_warm([60.0] * 5, range(5)) == 3


@pytest.mark.parametrize("seconds", [0.6, 60.0])
def test_the_first_two_iterations_are_never_the_last(seconds: float) -> None:
    assert num_until_warm([seconds] * 5, [0] * 5) == 3
