"""What a session says that it will take, against what the rule takes of simulated pairs."""

from __future__ import annotations

import numpy as np
import pytest
from simulation import World, simulate

from perfsuite.gate.arms.num_rounds import PairCost
from perfsuite.gate.judge.forecast import describe_cost, describe_rest, expect_pairs
from perfsuite.gate.judge.trial import Budget, CellPolicy, Trial

BUDGET = Budget(max_pairs=20, max_s=1800.0)
SHORT = PairCost(log_ratio=0.0, error=0.02, num_rounds=50, round_s=0.02, launch_s=1.0)
EVEN = PairCost(log_ratio=0.0, error=0.001, num_rounds=50, round_s=0.02, launch_s=1.0)


def trials(num_cells: int, *costs: PairCost) -> list[Trial]:
    policy = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
    return [Trial(name=str(n), policy=policy, costs=[*costs]) for n in range(num_cells)]


@pytest.mark.parametrize("prior_factor", [1.0, None])
@pytest.mark.parametrize("sd", [0.004, 0.01, 0.02])
@pytest.mark.parametrize("num_cells", [1, 8, 24])
def test_the_slowest_cell_takes_as_many_pairs_as_are_expected(
    num_cells: int, sd: float, prior_factor: float | None
) -> None:
    judged = simulate(
        World(prior_factor=prior_factor),
        pair_sd=sd,
        slowdown=0.0,
        num_cells=num_cells,
        num_sessions=200 * num_cells + 2000,
    )
    size = len(judged.num_pairs) // num_cells * num_cells
    slowest = np.mean(judged.num_pairs[:size].reshape(-1, num_cells).max(axis=1))

    variance = (sd / 0.01) ** 2
    expected = expect_pairs(num_cells, variance, has_history=prior_factor is not None)

    assert expected == pytest.approx(slowest, rel=0.25)


def test_before_the_first_pair_more_cells_take_more_pairs() -> None:
    assert describe_cost(1, 10.0, BUDGET) == "1 cell, about 37 s, at most 30 min"
    assert describe_cost(24, 10.0, BUDGET) == "24 cells, about 52 s, at most 30 min"
    assert describe_cost(24, 1000.0, BUDGET) == "24 cells, about 30 min, at most 30 min"


@pytest.mark.parametrize(
    ("costs", "has_history", "text"),
    [
        # 4 x 50 rounds of 0.02 s are 292 each once they can be planned (`plan_num_rounds`).
        ((SHORT,), False, "a pair takes 24 s: about 67 s more where nothing became slower"),
        ((SHORT,), True, "a pair takes 24 s: about 43 s more where nothing became slower"),
        # Rounds so alike that 20 suffice.
        ((EVEN,), False, "a pair takes 3 s: about 5 s more where nothing became slower"),
        # The test chooses its rounds, and nothing is known of their noise.
        ((), False, "a pair takes 5 s: about 17 s more where nothing became slower"),
    ],
)
def test_after_the_first_pair_the_planned_rounds_count(
    costs: tuple[PairCost, ...], has_history: bool, text: str
) -> None:
    assert describe_rest(trials(4, *costs), 5.0, BUDGET, has_history) == text


def test_the_rest_ends_with_the_budget_and_equal_bounds_take_all_of_it() -> None:
    (one,) = trials(1, SHORT)
    one.policy = CellPolicy(tolerance=0.05, limit=0.05, floor_s=0.0)
    budget = Budget(max_pairs=20, max_s=40.0)

    told = describe_rest([one], 10.0, budget, has_history=False)

    assert told == "a pair takes 15 s: about 30 s more where nothing became slower"
