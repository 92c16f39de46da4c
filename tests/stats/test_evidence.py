"""Locations and bounds against numbers worked out by hand with a table of t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfsuite.stats.evidence import Evidence, Pair, Prior, Sessions, weigh

# m = 0.04 and s^2 = 1e-4, so that SE = 0.0057735 without anything else, and for FAIL
# sqrt(1.35) times that, 0.0067082.
THREE = (0.03, 0.05, 0.04)

log_ratios = st.lists(st.floats(min_value=-0.2, max_value=0.2), min_size=2, max_size=16)


def weighed(
    pairs: Sequence[float],
    *,
    means: Sequence[float] | None = None,
    error: float = 0.0,
    prior: Prior | None = None,
) -> Evidence:
    """One session at the levels 5 % and 10 %."""
    means = pairs if means is None else means
    sessions = Sessions(np.array([pairs]), np.array([means]), np.full((1, len(pairs)), error))
    return weigh(sessions, prior, alpha=0.05, beta=0.10)


def test_without_a_prior_the_pairs_speak_for_themselves() -> None:
    # 2 degrees of freedom: t(0.95) = 2.9200, t(0.9) = 1.8856, t(0.8) = 1.0607.
    evidence = weighed(THREE)

    assert evidence.location == pytest.approx(0.04)
    assert evidence.lower == pytest.approx(0.04 - 2.9200 * 0.0067082, abs=1e-6)
    assert evidence.upper == pytest.approx(0.04 + 1.8856 * 0.0057735, abs=1e-6)
    assert evidence.improved == pytest.approx(0.04 + 2.9200 * 0.0057735, abs=1e-6)
    assert evidence.detectable == pytest.approx((2.9200 + 1.0607) * 0.0067082, abs=1e-6)


def test_a_prior_that_is_borne_out_adds_its_degrees_of_freedom_but_not_for_fail() -> None:
    # v = 1e-4 with 8 + 2 degrees of freedom: t(0.95) = 1.8125, t(0.9) = 1.3722.
    evidence = weighed(THREE, prior=Prior(sd=0.01))

    assert evidence.upper == pytest.approx(0.04 + 1.3722 * 0.0057735, abs=1e-6)
    assert evidence.improved == pytest.approx(0.04 + 1.8125 * 0.0057735, abs=1e-6)
    assert evidence.lower == weighed(THREE).lower


def test_a_prior_yields_to_pairs_that_spread_more() -> None:
    # s0^2 = 4e-5 holds to 5e-5, but s^2 = 1e-4: of 8 degrees of freedom 4 are left.
    # v = (4 x 4e-5 + 2 x 1e-4) / 6 = 6e-5; SE = sqrt(6e-5 / 3) = 0.0044721; t(0.9, 6) = 1.4398.
    evidence = weighed(THREE, prior=Prior(sd=math.sqrt(4e-5)))

    assert evidence.upper == pytest.approx(0.04 + 1.4398 * 0.0044721, abs=1e-6)


def test_a_prior_of_a_noisier_machine_widens_the_bounds_of_pass() -> None:
    # v = (8 x 4e-4 + 2 x 1e-4) / 10 = 3.4e-4; SE = 0.0106458.
    evidence = weighed(THREE, prior=Prior(sd=0.02))

    assert evidence.upper == pytest.approx(0.04 + 1.3722 * 0.0106458, abs=1e-6)


def test_no_spread_for_fail_is_smaller_than_the_rounds_explain() -> None:
    # 0.02^2 = 4e-4 of each pair: SE = sqrt(1.35 x 4e-4 / 3) = 0.0134164.
    evidence = weighed(THREE, error=0.02)

    assert evidence.lower == pytest.approx(0.04 - 2.9200 * 0.0134164, abs=1e-6)
    assert evidence.upper == weighed(THREE).upper


def test_equal_pairs_are_given_the_smallest_spread_that_a_machine_has() -> None:
    # v = 0.001^2, SE = 0.00057735, and 0.00067082 for FAIL.
    evidence = weighed([0.03, 0.03, 0.03])

    assert evidence.lower == pytest.approx(0.03 - 2.9200 * 0.00067082, abs=1e-6)
    assert evidence.upper == pytest.approx(0.03 + 1.8856 * 0.00057735, abs=1e-6)


def test_from_six_pairs_on_a_spike_is_pulled_in_to_two_standard_deviations() -> None:
    # s^2 = 0.08^2 / 6, so the fence is at 2 x 0.0326599 = 0.0653197 from the median 0; then
    # m = 0.0653197 / 6 and s^2 = 0.0653197^2 / 6, times 5^2 / 4^2 because one pair was pulled in;
    # SE = 1.25 x 0.0108866 = 0.0136083, for FAIL 0.0158114; t(0.95, 5) = 2.0150.
    evidence = weighed([0.08, 0.0, 0.0, 0.0, 0.0, 0.0])

    assert evidence.location == pytest.approx(0.0108866, abs=1e-6)
    assert evidence.lower == pytest.approx(0.0108866 - 2.0150 * 0.0158114, abs=1e-6)
    assert weighed([0.08, 0.0, 0.0, 0.0, 0.0]).location == pytest.approx(0.016)


def test_the_mean_has_a_bound_of_its_own_and_no_fence() -> None:
    # m = 0.48 / 6 = 0.08; s^2 = 0.48^2 / 6; SE = 0.08; t(0.9, 5) = 1.4759.
    evidence = weighed([0.0] * 6, means=[0.48, 0.0, 0.0, 0.0, 0.0, 0.0])

    assert evidence.mean == pytest.approx(0.08)
    assert evidence.mean_upper == pytest.approx(0.08 + 1.4759 * 0.08, abs=1e-5)
    assert evidence.upper < 0.001


def test_a_prior_is_half_as_wide_again_for_the_mean() -> None:
    # s0^2 = 1e-4 as s^2: v = 1e-4 with 10 degrees of freedom.
    evidence = weighed([0.0] * 3, means=THREE, prior=Prior(sd=0.01 / 1.5))

    assert evidence.mean_upper == pytest.approx(0.04 + 1.3722 * 0.0057735, abs=1e-6)


@pytest.mark.parametrize(
    ("means", "differs"),
    [
        ([0.33, 0.35, 0.34], True),
        ([-0.27, -0.25, -0.26], True),
        ([0.04, 0.05, 0.03], False),
        # t(0.995, 2) = 9.9248: the differences are 0.0100 +- 0.001, SE 0.00057735, then 0.0050.
        ([0.039, 0.060, 0.051], True),
        ([0.034, 0.055, 0.046], False),
    ],
)
def test_the_mean_differs_where_it_lies_beyond_the_noise(means: list[float], differs: bool) -> None:
    assert bool(weighed(THREE, means=means).mean_differs[0]) is differs


@given(
    log_ratios, st.floats(min_value=0.003, max_value=0.1), st.floats(min_value=1.0, max_value=10.0)
)
# Exactly on the fence; the scaled one lies beyond by its rounding.
@example([0.0] * 9 + [0.12], 0.06, 7.0)
def test_the_evidence_scales_with_the_pairs_their_errors_and_their_prior(
    pairs: list[float], sd: float, factor: float
) -> None:
    evidence = weighed(pairs, error=sd, prior=Prior(sd=sd))
    scaled = weighed([factor * x for x in pairs], error=factor * sd, prior=Prior(sd=factor * sd))

    for name in ("location", "lower", "upper", "mean", "mean_upper"):
        assert getattr(scaled, name) == pytest.approx(
            factor * getattr(evidence, name), rel=1e-6, abs=1e-9
        )


@given(log_ratios, st.floats(min_value=0.0, max_value=0.1))
def test_what_the_rounds_explain_and_what_is_known_beforehand_never_help_a_fail(
    pairs: list[float], error: float
) -> None:
    alone = weighed(pairs)

    assert weighed(pairs, error=error).lower <= alone.lower or len(pairs) > 5
    assert weighed(pairs, prior=Prior(sd=0.01)).lower == alone.lower


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"log_ratio": math.nan}, "a pair's log_ratio is nan; it must be finite"),
        ({"mean_log_ratio": math.inf}, "a pair's mean_log_ratio is inf; it must be finite"),
        ({"error": math.inf}, "a pair's error is inf; it must be finite"),
    ],
)
def test_pairs_that_are_no_numbers_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Pair(**({"log_ratio": 0.0, "mean_log_ratio": 0.0} | fields))

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sd": 0.0}, "a prior's sd is 0.0; it must be positive and finite"),
        ({"sd": math.nan}, "a prior's sd is nan; it must be positive and finite"),
        (
            {"sd": 0.01, "degrees_of_freedom": math.inf},
            "a prior's degrees_of_freedom is inf; it must be positive and finite",
        ),
    ],
)
def test_a_prior_that_says_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Prior(**fields)

    assert str(refused.value) == message
