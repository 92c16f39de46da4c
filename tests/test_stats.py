"""Statistics against values worked out by hand, and what must hold for any samples."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.stats import median, robust_sd

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
