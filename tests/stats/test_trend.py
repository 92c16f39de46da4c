"""The trend of a series: steps and drift apart, and how often either is wrong."""

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
DRIFT = 0.005


def flat(week: float) -> float:
    return 0.0


def drifting(week: float) -> float:
    return math.log1p(DRIFT) * week


def stepping(week: float) -> float:
    return math.log(1.08) * (week >= 13)


def both(week: float) -> float:
    return drifting(week) - 0.2 * (week >= 9)


def trend_of(log_at: Callable[[float], float], *, seed: int = 1, smallest: float = 0.01) -> Trend:
    numbers = random.Random(seed)
    times_s = [0.002 * math.exp(log_at(week) + NOISE * numbers.gauss(0, 1)) for week in WEEKS]
    trend = find_trend(WEEKS, times_s, smallest=smallest)
    assert trend is not None
    return trend


def test_a_drift_that_no_week_shows_is_no_staircase() -> None:
    trend = trend_of(drifting)

    assert trend.steps == ()
    assert trend.drift is not None
    assert trend.drift.low < math.log1p(DRIFT) < trend.drift.high
    assert math.exp(trend.drift.slope * (WEEKS[-1] - WEEKS[0])) == pytest.approx(1.135, abs=0.01)


def test_a_step_is_a_step_and_no_drift() -> None:
    trend = trend_of(stepping)

    (step,) = trend.steps
    assert step.place == WEEKS.index(13)
    assert step.low < 1.08 < step.high
    assert trend.drift is None


def test_a_drift_goes_on_beside_a_large_step_that_hides_it() -> None:
    trend = trend_of(both)

    (step,) = trend.steps
    assert step.place == WEEKS.index(9)
    assert step.ratio == pytest.approx(math.exp(-0.2), abs=0.01)
    assert trend.drift is not None
    assert trend.drift.slope == pytest.approx(math.log1p(DRIFT), abs=0.001)


def levels_of(*logs: float) -> Trend:
    """A series that stays at each level for an equal share of the half year."""
    num_weeks = NUM_WEEKS / len(logs)
    trend = trend_of(lambda week: logs[int(week / num_weeks)])
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
    ("logs", "is_recovered"),
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
def test_a_slowdown_is_recovered_once_nothing_of_it_would_be_told(
    logs: tuple[float, ...], is_recovered: bool
) -> None:
    assert levels_of(*logs).is_recovered(1, smallest=0.01) == is_recovered


def test_a_slowdown_of_which_less_than_the_smallest_change_is_left_has_recovered() -> None:
    trend = levels_of(0.0, 0.1, 0.04)

    assert trend.is_recovered(1, smallest=0.05)


def test_the_detrended_values_are_the_logarithms_without_the_drift_alone() -> None:
    stepped, drifted = trend_of(stepping), trend_of(drifting)

    before, after = stepped.detrended[: WEEKS.index(13)], stepped.detrended[WEEKS.index(13) :]
    assert np.exp(np.median(before)) == pytest.approx(0.002, rel=0.005)
    assert np.exp(np.median(after)) == pytest.approx(0.00216, rel=0.005)
    halves = np.array_split(drifted.detrended, 2)
    assert np.median(halves[0]) == pytest.approx(np.median(halves[1]), abs=0.01)
    assert np.exp(np.median(drifted.detrended)) == pytest.approx(0.002, rel=0.005)


@pytest.mark.parametrize(
    "log_at", [lambda week: 0.03 * (week >= 13), lambda week: 0.03 * week / NUM_WEEKS]
)
def test_what_is_smaller_than_the_smallest_change_is_left_out(
    log_at: Callable[[float], float],
) -> None:
    found, ignored = trend_of(log_at), trend_of(log_at, smallest=0.05)

    assert found.steps or found.drift
    assert (ignored.steps, ignored.drift) == ((), None)


def test_too_few_runs_have_no_trend() -> None:
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
    assert np.exp(trend.detrended) == pytest.approx([0.002] * len(WEEKS))


@pytest.mark.parametrize("exponents", [range(-300, 300, 15), [308] * 39 + [-300]])
def test_times_that_no_clock_has_seen_do_not_overflow(exponents: Sequence[int]) -> None:
    seconds = [second / 604800 for second in range(20)]
    weeks = [*seconds, *(2 + second for second in seconds)]

    trend = find_trend(weeks, [10.0**exponent for exponent in exponents])

    assert trend is not None
    assert np.isfinite(np.exp(trend.detrended)).all()
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

    trends = [find_trend(WEEKS, np.exp(NOISE * errors), smallest=0.0) for errors in drawn]

    num_false = sum(bool(c is not None and (c.steps or c.drift)) for c in trends)
    # Three Monte Carlo standard deviations above 1 %.
    assert num_false <= num_histories * 0.01 + 3 * (num_histories * 0.01) ** 0.5


def test_a_drift_of_half_a_percent_a_week_is_always_found() -> None:
    trends = [trend_of(drifting, seed=seed) for seed in range(10)]

    assert all(trend.drift is not None for trend in trends)
    assert sum(bool(trend.steps) for trend in trends) <= 1
