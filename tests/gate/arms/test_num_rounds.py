"""How many rounds a launch is given, by hand-checked numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.gate.arms.num_rounds import PairCost, first_num_rounds, plan_num_rounds

USUAL = {"tolerance": 0.02, "limit": 0.05}
# A third and a half of the gap between them: log(1.05 / 1.02) / 3.5.
TARGET = 0.0082823


def pairs(*log_ratios: float, **changes: Any) -> list[PairCost]:
    one = {"error": 0.01, "num_rounds": 100, "round_s": 0.01, "launch_s": 4.0} | changes
    return [PairCost(log_ratio=value, **one) for value in log_ratios]


def test_rounds_are_as_many_as_make_four_pairs_enough() -> None:
    # A round's sd is 0.01 * sqrt(100); (0.1 / 0.0082823)^2 = 145.8.
    assert plan_num_rounds(pairs(0.0, 0.0, 0.0), **USUAL) == 146


def test_a_tighter_limit_takes_more_rounds() -> None:
    # (0.1 / (log(1.02 / 1.005) / 3.5))^2 = 559.2, and 3 s of each arm are room for 600.
    assert plan_num_rounds(pairs(0.0, 0.0, 0.0), tolerance=0.005, limit=0.02) == 559


def test_rounds_cannot_buy_what_launches_vary_by() -> None:
    # Launches vary by sqrt(0.03^2 - 0.01^2) = 0.02828: 0.1 / 0.02828 * sqrt(4 / 0.01) = 70.7.
    assert plan_num_rounds(pairs(-0.03, 0.0, 0.03), **USUAL) == 71


def test_before_three_pairs_rounds_take_no_longer_than_what_is_paid_beside_them() -> None:
    assert plan_num_rounds(pairs(-0.03, 0.03, launch_s=1.2), **USUAL) == 120
    assert plan_num_rounds(pairs(0.0, launch_s=0.5), **USUAL) == 100  # as many as the first
    assert plan_num_rounds(pairs(0.0, error=0.001), **USUAL) == 10


def test_the_noise_of_launches_leaves_less_to_that_of_rounds() -> None:
    # Launches vary by 0.005: 0.01 / (0.0082823^2 - 0.005^2) = 229.4, less than the split's 400.
    spread = math.sqrt(0.01**2 + 0.005**2)
    assert plan_num_rounds(pairs(-spread, 0.0, spread), **USUAL) == 230


@pytest.mark.parametrize(
    ("changes", "num_rounds"),
    [
        ({"error": 0.0}, 10),  # a coarse clock: all rounds are alike
        ({"error": 1.0}, 600),  # 3 s of each arm
        ({"error": 1.0, "round_s": 2.0}, 10),  # a single round is long
        ({"error": 1.0, "round_s": 1e-5}, 1000),
    ],
)
def test_rounds_stay_within_what_a_location_needs_and_what_a_launch_may_take(
    changes: dict[str, float], num_rounds: int
) -> None:
    assert plan_num_rounds(pairs(0.0, 0.0, 0.0, **changes), **USUAL) == num_rounds


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(1e-6, 100),
    st.floats(0, 1000),
)
def test_the_number_is_always_within_its_bounds(
    ratios: list[float], error: float, round_s: float, launch_s: float
) -> None:
    found = plan_num_rounds(
        pairs(*ratios, error=error, round_s=round_s, launch_s=launch_s), **USUAL
    )
    assert 5 <= found <= 1000


def test_a_first_launch_has_as_many_rounds_as_fit_but_never_so_few_that_they_say_nothing() -> None:
    found = [first_num_rounds(round_s, 1.0) for round_s in (0.0001, 0.010, 0.5, 1.0, 30.0)]

    assert found == [1000, 100, 10, 10, 5]
