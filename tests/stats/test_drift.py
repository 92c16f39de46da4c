"""The drift of a series: slopes by hand, scipy's where there is one segment, Kendall's test."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import kendalltau, norm, theilslopes

from perfsuite.stats import change_points
from perfsuite.stats.trend import DRIFT_LEVEL, Drift, measure_drift

SERIES = st.lists(st.tuples(st.integers(0, 12), st.integers(-20, 20)), min_size=4, max_size=25)


def found(*arguments: object) -> Drift:
    drift = measure_drift(*arguments)  # type: ignore[arg-type]
    assert drift is not None
    return drift


def found_of_independent(times: list[float], values: list[float]) -> Drift:
    """Where the values are known to be independent, whatever they look like."""
    with patch.object(change_points, "find_correlation", lambda parts: 0.0):
        return found(times, values, [0, len(times)])


def test_the_slope_is_the_median_of_the_slopes_between_two_values() -> None:
    # Slopes 1, 3, 2, 5, 2, -1 of the six pairs.
    drift = found([0, 1, 2, 3], [0.0, 1.0, 6.0, 5.0], [0, 4])

    assert drift.slope == pytest.approx(np.median([1, 3, 5 / 3, 5, 2, -1]))


@given(st.lists(st.integers(-20, 20), min_size=4, max_size=25))
def test_with_one_segment_it_is_theils_of_scipy(values: list[int]) -> None:
    assume(len(set(values)) > 1)
    times = [place + place**2 / 50 for place in range(len(values))]

    drift = found_of_independent(times, values)

    theirs = theilslopes(values, times, 0.95)
    assert drift.slope == pytest.approx(theirs.slope)
    assert (drift.low, drift.high) == pytest.approx((theirs.low_slope, theirs.high_slope))


@given(SERIES)
def test_the_test_is_kendalls_with_a_correction_for_continuity(
    series: list[tuple[int, int]],
) -> None:
    times, values = map(list, zip(*series, strict=True))
    assume(len(set(times)) > 1 and len(set(values)) > 1)

    drift = found_of_independent(times, values)

    without = kendalltau(times, values, method="asymptotic").pvalue
    assert drift.p_value >= without or drift.p_value == pytest.approx(without)


def test_the_test_of_few_values_by_hand() -> None:
    # Five values in order: S = 10, its variance 5 * 4 * 15 / 18, z = 9 / 4.0825 = 2.2045.
    drift = found_of_independent([0, 1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0, 5.0])

    assert drift.p_value == pytest.approx(math.erfc(9 / math.sqrt(300 / 18) / math.sqrt(2)))
    assert drift.p_value == pytest.approx(0.0275, abs=1e-4)


def test_a_step_between_two_segments_is_no_drift() -> None:
    values = [*([0.0, 0.1] * 5), *([9.0, 9.1] * 5)]

    whole, parted = (found(range(20), values, bounds) for bounds in ([0, 20], [0, 10, 20]))

    assert parted.p_value >= DRIFT_LEVEL
    assert abs(parted.slope) < 0.05 < whole.slope


def test_segments_share_their_drift() -> None:
    values = [0.1 * place + 5 * (place >= 6) for place in range(12)]

    drift = found(range(12), values, [0, 6, 12])

    assert (drift.slope, drift.low, drift.high) == pytest.approx((0.1, 0.1, 0.1))
    assert drift.p_value < DRIFT_LEVEL


@pytest.mark.parametrize(
    ("times", "bounds"), [([3, 3, 3, 3], [0, 4]), ([1, 1, 2, 2], [0, 2, 4]), ([1, 2], [0, 1, 2])]
)
def test_without_two_times_in_a_segment_there_is_no_drift(
    times: list[int], bounds: list[int]
) -> None:
    assert measure_drift(times, [float(place) for place in range(len(times))], bounds) is None


def test_a_quarter_of_the_values_may_be_anything() -> None:
    values = [0.5 * place for place in range(20)]
    values[3:8] = [1e6, -1e6, 1e6, -1e6, 1e6]

    drift = found(range(20), values, [0, 20])

    assert drift.slope == pytest.approx(0.5)


def test_a_correlation_of_a_half_makes_the_variance_three_times_as_large() -> None:
    values = [0.1 * place + 2 * math.sin(place / 4) for place in range(60)]
    with patch.object(change_points, "find_correlation", lambda parts: 0.5):
        dependent = found(range(60), values, [0, 60])
    independent = found_of_independent(list(range(60)), values)

    sds = [norm.isf(drift.p_value / 2) for drift in (independent, dependent)]

    assert sds[0] / sds[1] == pytest.approx(3**0.5)


def test_values_that_hang_together_prove_less() -> None:
    values = [0.1 * place + 2 * math.sin(place / 4) for place in range(60)]

    independent = found_of_independent(list(range(60)), values)
    dependent = found(range(60), values, [0, 60])

    assert dependent.slope == independent.slope
    assert dependent.p_value > independent.p_value
    assert dependent.low < independent.low
    assert dependent.high > independent.high
