"""The course of a series: steps and drift told apart, and how often either is told wrongly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from perfsuite.stats.trend import MIN_VALUES, Trend, find_trend, locate_shift

# Half a year of merges, each measured with sessions that vary by 1 %.
NUM_WEEKS = 26
RUNS_PER_WEEK = 2
WEEKS = [run / RUNS_PER_WEEK for run in range(NUM_WEEKS * RUNS_PER_WEEK)]
NOISE = 0.01
CREEP = 0.005


def flat(week: float) -> float:
    return 0.0


def creeping(week: float) -> float:
    return math.log1p(CREEP) * week


def stepping(week: float) -> float:
    return math.log(1.08) * (week >= 13)


def both(week: float) -> float:
    return creeping(week) - 0.2 * (week >= 9)


def course_of(log_at: Callable[[float], float], *, seed: int = 1, smallest: float = 0.01) -> Trend:
    numbers = random.Random(seed)
    times_s = [0.002 * math.exp(log_at(week) + NOISE * numbers.gauss(0, 1)) for week in WEEKS]
    trend = find_trend(WEEKS, times_s, smallest=smallest)
    assert trend is not None
    return trend


def test_a_creep_that_no_week_shows_is_a_drift_and_no_staircase() -> None:
    trend = course_of(creeping)

    assert trend.steps == ()
    assert trend.drift is not None
    assert trend.drift.low < math.log1p(CREEP) < trend.drift.high
    assert math.exp(trend.drift.slope * (WEEKS[-1] - WEEKS[0])) == pytest.approx(1.135, abs=0.01)


def test_a_step_is_a_step_and_no_drift() -> None:
    trend = course_of(stepping)

    (step,) = trend.steps
    assert step.place == WEEKS.index(13)
    assert step.low < 1.08 < step.high
    assert trend.drift is None


def test_a_creep_goes_on_beside_a_large_step_that_hides_it() -> None:
    trend = course_of(both)

    (step,) = trend.steps
    assert step.place == WEEKS.index(9)
    assert step.ratio == pytest.approx(math.exp(-0.2), abs=0.01)
    assert trend.drift is not None
    assert trend.drift.slope == pytest.approx(math.log1p(CREEP), abs=0.001)


def levels_of(*logs: float) -> Trend:
    """A course that stays at each level for an equal share of the half year."""
    num_weeks = NUM_WEEKS / len(logs)
    trend = course_of(lambda week: logs[int(week / num_weeks)])
    assert len(trend.steps) == len(logs) - 1
    return trend


def test_levels_that_are_no_neighbours_can_be_compared() -> None:
    trend = levels_of(0.0, 0.1, 0.3)

    ratio, low, high = trend.compare(0, 2)

    assert low < math.exp(0.3) < high
    assert ratio == pytest.approx(math.exp(0.3), rel=0.01)
    assert trend.compare(0, 1) == tuple(
        pytest.approx(value)
        for value in (trend.steps[0].ratio, trend.steps[0].low, trend.steps[0].high)
    )


@pytest.mark.parametrize(
    ("logs", "is_mended"),
    [
        ((0.0, 0.1), False),
        ((0.0, 0.1, 0.0), True),
        ((0.0, 0.1, -0.1), True),
        ((0.0, 0.1, 0.04), False),
        ((0.0, 0.1, 0.3), False),
        ((0.0, 0.1, 0.0, 0.1), True),
        ((0.0, 0.1, 0.3, 0.1), False),
    ],
)
def test_a_slowdown_is_mended_once_nothing_of_it_would_be_told(
    logs: tuple[float, ...], is_mended: bool
) -> None:
    assert levels_of(*logs).is_mended(1, smallest=0.01) == is_mended


def test_what_is_left_of_a_slowdown_is_nothing_where_it_would_not_be_told() -> None:
    trend = levels_of(0.0, 0.1, 0.04)

    assert trend.is_mended(1, smallest=0.05)


def test_the_levels_are_what_steps_and_drift_say() -> None:
    stepped, crept = course_of(stepping), course_of(creeping)

    assert len(set(stepped.levels_s)) == 2
    assert stepped.levels_s[0] == pytest.approx(0.002, rel=0.005)
    assert stepped.levels_s[-1] == pytest.approx(0.00216, rel=0.005)
    rises = np.diff(np.log(crept.levels_s))
    assert rises == pytest.approx([math.log1p(CREEP) / RUNS_PER_WEEK] * len(rises), rel=0.1)


@pytest.mark.parametrize(
    "log_at", [lambda week: 0.03 * (week >= 13), lambda week: 0.03 * week / NUM_WEEKS]
)
def test_what_is_smaller_than_asked_for_is_not_told(log_at: Callable[[float], float]) -> None:
    told, untold = course_of(log_at), course_of(log_at, smallest=0.05)

    assert told.steps or told.drift
    assert (untold.steps, untold.drift) == ((), None)


def test_too_few_runs_have_no_course() -> None:
    times_s = [*[1.0] * 6, *[2.0] * 7]

    assert find_trend(WEEKS[: MIN_VALUES - 1], times_s[:-1]) is None
    trend = find_trend(WEEKS[:MIN_VALUES], times_s)
    assert trend is not None
    assert [step.place for step in trend.steps] == [6]


def test_runs_of_a_few_days_have_no_drift_a_week() -> None:
    numbers = random.Random(1)
    times_s = [math.exp(0.01 * run + 0.001 * numbers.gauss(0, 1)) for run in range(30)]

    within, beyond = (find_trend([days * r / 30 for r in range(30)], times_s) for days in (0.9, 2))

    assert within is not None
    assert beyond is not None
    assert within.drift is None
    assert within.steps
    assert beyond.drift is not None
    assert not beyond.steps


def test_times_that_are_all_equal_have_no_change() -> None:
    trend = find_trend(WEEKS, [0.002] * len(WEEKS))

    assert trend is not None
    assert (trend.steps, trend.drift) == ((), None)
    assert trend.levels_s == pytest.approx([0.002] * len(WEEKS))


@pytest.mark.parametrize("exponents", [range(-300, 300, 15), [308] * 39 + [-300]])
def test_times_that_no_clock_has_seen_do_not_overflow(exponents: Sequence[int]) -> None:
    seconds = [second / 604800 for second in range(20)]
    weeks = [*seconds, *(2 + second for second in seconds)]

    trend = find_trend(weeks, [10.0**exponent for exponent in exponents])

    assert trend is not None
    assert all(map(math.isfinite, trend.levels_s))
    assert all(math.isfinite(step.ratio) for step in trend.steps)


def test_the_bounds_of_a_shift_are_where_mann_and_whitney_begin_to_refuse_it() -> None:
    numbers = random.Random(2)
    before = [numbers.gauss(0, 1) for _ in range(15)]
    after = [numbers.gauss(2, 1) for _ in range(20)]

    shift, low, high = locate_shift(before, after)

    def p_value(moved_by: float) -> float:
        moved = [value - moved_by for value in after]
        return float(mannwhitneyu(before, moved, method="asymptotic").pvalue)

    assert low < shift < high
    assert p_value(low - 0.01) < 0.05 < p_value(low + 0.05)
    assert p_value(high + 0.01) < 0.05 < p_value(high - 0.05)


# --- how often it is wrong ---


@pytest.mark.parametrize("noise", ["normal", "student"])
def test_of_flat_histories_at_most_one_in_a_hundred_is_said_to_change(noise: str) -> None:
    generator = np.random.default_rng(3)
    num_histories, shape = 500, (500, len(WEEKS))
    drawn = generator.standard_t(3, shape) if noise == "student" else generator.normal(size=shape)

    courses = [find_trend(WEEKS, np.exp(NOISE * errors), smallest=0.0) for errors in drawn]

    num_false = sum(bool(c is not None and (c.steps or c.drift)) for c in courses)
    # Three Monte Carlo standard deviations above 1 %.
    assert num_false <= num_histories * 0.01 + 3 * (num_histories * 0.01) ** 0.5


def test_a_creep_of_half_a_percent_a_week_is_always_told() -> None:
    courses = [course_of(creeping, seed=seed) for seed in range(10)]

    assert all(trend.drift is not None for trend in courses)
    assert sum(bool(trend.steps) for trend in courses) <= 1
