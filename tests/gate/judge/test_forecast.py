"""What a session says that it will take, against what the rule takes of simulated pairs."""

from __future__ import annotations

import numpy as np
import pytest
from simulation import World, simulate

from perfsuite.gate.judge.forecast import (
    describe_cost,
    describe_rest,
    expect_pairs,
    forecast_pair_s,
    why_too_much,
)
from perfsuite.gate.judge.trial import Budget

BUDGET = Budget(max_pairs=20, max_s=1800.0)


@pytest.mark.parametrize("prior_factor", [1.0, None])
@pytest.mark.parametrize("num_cells", [1, 8, 24])
def test_the_slowest_cell_takes_as_many_pairs_as_are_expected(
    num_cells: int, prior_factor: float | None
) -> None:
    judged = simulate(
        World(prior_factor=prior_factor),
        pair_sd=0.02,
        slowdown=0.0,
        num_cells=num_cells,
        num_sessions=200 * num_cells + 2000,
    )
    size = len(judged.num_pairs) // num_cells * num_cells
    slowest = np.mean(judged.num_pairs[:size].reshape(-1, num_cells).max(axis=1))

    expected = expect_pairs(num_cells, has_history=prior_factor is not None)

    assert expected == pytest.approx(slowest, rel=0.25)


def test_before_the_first_pair_more_cells_take_more_pairs() -> None:
    assert describe_cost(1, 10.0, BUDGET) == "1 cell, about 60 s, at most 30 min"
    assert describe_cost(24, 10.0, BUDGET) == "24 cells, about 1.92 min, at most 30 min"
    assert describe_cost(24, 1000.0, BUDGET) == "24 cells, about 30 min, at most 30 min"


@pytest.mark.parametrize(
    ("num_cells", "has_history", "max_s", "text"),
    [
        (4, False, 1800.0, "a pair takes 5 s: about 37 s more where nothing became slower"),
        (4, True, 1800.0, "a pair takes 5 s: about 32 s more where nothing became slower"),
        (4, False, 15.0, "a pair takes 5 s: about 10 s more where nothing became slower"),
    ],
)
def test_the_first_pair_tells_how_long_the_others_will_take(
    num_cells: int, has_history: bool, max_s: float, text: str
) -> None:
    budget = Budget(max_pairs=20, max_s=max_s)

    assert describe_rest(num_cells, 5.0, budget, has_history=has_history) == text


def test_without_a_budget_no_pair_can_decide() -> None:
    assert why_too_much(4, 5.0, Budget(max_pairs=20, max_s=0.0)) == (
        "2 pairs are the fewest that decide, one takes about 5 s, and they may take 0 s; "
        "allow more with --max-minutes (pytest: --perf-max-minutes)"
    )


def test_a_pair_takes_what_its_cells_took_and_is_not_known_where_one_is_new() -> None:
    assert forecast_pair_s(["a", "b"], {"a": 1.0, "b": 2.5}, 1.5) == 6.0
    assert forecast_pair_s(["a", "b"], {"a": 1.0, "b": None}, 1.5) is None
