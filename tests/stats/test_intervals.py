"""Statistics against values worked out by hand, and what must hold for any samples."""

from __future__ import annotations

import math
import statistics
from statistics import median

import pytest
import scipy.stats
import scipy.stats.mstats
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.stats.intervals import (
    Interval,
    geometric_interval,
    ratio_interval,
    robust_sd,
    trimmed_mean,
)

samples = st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([4.0], 4.0), ([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5)],
)
def test_the_median_is_the_middle_or_the_mean_of_both_middles(
    values: list[float], expected: float
) -> None:
    assert median(values) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Distances from the median 3: 2, 1, 0, 1, 97; their median is 1.
        ([1.0, 2.0, 3.0, 4.0, 100.0], 1.4826),
        # Distances from the median 2: 1, 1; their median is 1.
        ([1.0, 3.0], 1.4826),
        ([5.0, 5.0, 5.0], 0.0),
        ([5.0], 0.0),
        ([], 0.0),
    ],
)
def test_the_robust_spread_is_the_scaled_median_distance(
    values: list[float], expected: float
) -> None:
    assert robust_sd(values) == pytest.approx(expected)


def test_the_robust_spread_of_normal_quantiles_is_their_standard_deviation() -> None:
    normal = statistics.NormalDist(mu=10.0, sigma=0.5)
    quantiles = [normal.inv_cdf((index + 0.5) / 1001) for index in range(1001)]

    assert robust_sd(quantiles) == pytest.approx(0.5, rel=2e-3)


@given(samples)
def test_the_median_is_a_sample_or_between_two(values: list[float]) -> None:
    assert min(values) <= median(values) <= max(values)


@given(samples, st.floats(min_value=0.1, max_value=10))
def test_the_robust_spread_scales_with_the_samples(values: list[float], factor: float) -> None:
    scaled = robust_sd([factor * value for value in values])

    assert scaled == pytest.approx(factor * robust_sd(values), rel=1e-6, abs=1e-9)


@given(samples, st.floats(min_value=1e6, max_value=1e9))
def test_one_outlier_moves_neither_beyond_the_samples(values: list[float], outlier: float) -> None:
    tripled = values * 3  # so that one sample is less than half of them

    assert median([*tripled, outlier]) <= max(values)
    assert robust_sd([*tripled, outlier]) <= 1.4826 * (max(values) - min(values))


def test_the_interval_of_ratios_is_students_on_their_logarithms() -> None:
    interval = geometric_interval([0.5, 1.0, 2.0, 4.0])

    # Logarithms of base 2: -1, 0, 1, 2; mean 0.5, sd 1.291, t(0.025, 3) = 3.182.
    assert interval.centre == pytest.approx(2**0.5)
    assert math.log2(interval.high) == pytest.approx(0.5 + 3.182 * 1.291 / 2, rel=1e-3)
    assert interval.low * interval.high == pytest.approx(interval.centre**2)


def test_one_sample_has_no_interval() -> None:
    assert geometric_interval([2.0]) == Interval(centre=2.0, low=0.0, high=math.inf)


@given(st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=2, max_size=20))
def test_the_interval_of_inverse_ratios_is_the_inverse_interval(values: list[float]) -> None:
    interval = geometric_interval(values)
    inverse = geometric_interval([1 / value for value in values])

    assert inverse.centre == pytest.approx(1 / interval.centre, rel=1e-6)
    assert interval.low <= interval.centre <= interval.high


def test_the_interval_of_a_ratio_of_means_is_welchs_on_logarithms() -> None:
    # Logs of base 2: 0, 2, 4 (mean 2, variance 4) and 0, 1 (mean 1/2, variance 1/2).
    interval = ratio_interval([1.0, 4.0, 16.0], [1.0, 2.0])

    # Errors 4/3 and 1/4: sd 1.2583; df = (19/12)^2 / ((4/3)^2 / 2 + (1/4)^2 / 1) = 2.6350, where
    # t, by the tables of 2 and 3, is between 4.303 and 3.182.
    reach = math.log2(interval.high / interval.centre)
    assert math.log2(interval.centre) == pytest.approx(1.5)
    assert 3.182 * 1.2583 < reach < 4.303 * 1.2583
    assert math.log2(interval.centre / interval.low) == pytest.approx(reach)


def test_equal_spreads_of_equal_numbers_have_students_interval() -> None:
    # Variance 1/2 of 2 logs on either side: error 1/2, df 2, t = 4.303.
    interval = ratio_interval([2.0, 4.0], [1.0, 2.0])

    assert math.log2(interval.high) == pytest.approx(1 + 4.303 * math.sqrt(0.5), abs=1e-3)


def test_samples_without_spread_have_a_ratio_without_one() -> None:
    assert ratio_interval([4.0, 4.0], [2.0, 2.0]) == Interval(
        centre=pytest.approx(2.0), low=pytest.approx(2.0), high=pytest.approx(2.0)
    )


@pytest.mark.parametrize(("one", "other"), [([1.0], [2.0, 3.0]), ([1.0, 2.0], [3.0])])
def test_a_single_sample_on_either_side_leaves_everything_possible(
    one: list[float], other: list[float]
) -> None:
    interval = ratio_interval(one, other)

    assert (interval.low, interval.high) == (0.0, math.inf)


several = st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=2, max_size=10)


@given(one=several, other=several)
def test_the_inverse_ratio_has_the_inverse_interval(one: list[float], other: list[float]) -> None:
    there, back = ratio_interval(one, other), ratio_interval(other, one)

    assert there.low <= there.centre <= there.high
    assert there.centre * back.centre == pytest.approx(1.0)
    assert math.log(there.low) == pytest.approx(-math.log(back.high), abs=1e-9)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_the_trimmed_mean_and_its_error_are_those_of_scipy(samples: list[float]) -> None:
    centre, error = trimmed_mean(samples)

    assert centre == pytest.approx(scipy.stats.trim_mean(samples, 0.2), rel=1e-12)
    if len(samples) < 5:
        assert error == math.inf
    else:
        expected = scipy.stats.mstats.trimmed_stde(samples, limits=(0.2, 0.2))
        assert error == pytest.approx(float(expected), rel=1e-9, abs=1e-9)
