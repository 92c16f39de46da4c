"""The rule's promises, on 40,000 simulated cells each: seeded, so they hold or they do not.

`python benchmarks/gate_error_rates.py` has every figure.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import simulation
from simulation import (
    ALPHA_PER_CELL,
    LIMIT,
    TOLERANCE,
    WORLDS,
    World,
    most_by_chance,
    simulate,
)

NO_HISTORY = World(prior_factor=None)
# Of --fast: seeded too, and enough to notice a broken rule.
_FEW_SESSIONS = 6_000


@pytest.fixture(autouse=True)
def _few_in_a_fast_session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.option.fast:
        monkeypatch.setattr(simulation, "NUM_SESSIONS", _FEW_SESSIONS)


@pytest.mark.parametrize("pair_sd", [0.01, 0.02])
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_neither_identical_code_nor_a_tolerable_slowdown_fails_oftener_than_promised(
    world: World, pair_sd: float
) -> None:
    same = simulate(world, pair_sd=pair_sd, slowdown=0.0)
    tolerable = simulate(world, pair_sd=pair_sd, slowdown=TOLERANCE)

    assert same.rate("FAIL") <= most_by_chance(0.0002)
    assert tolerable.rate("FAIL") <= most_by_chance(ALPHA_PER_CELL)


@pytest.mark.parametrize("slowdown", [0.0, TOLERANCE])
def test_launches_in_one_of_two_states_fail_no_oftener_than_promised(slowdown: float) -> None:
    judged = simulate(World(noise="two states", explained=0.04), pair_sd=0.01, slowdown=slowdown)

    assert judged.rate("FAIL") <= most_by_chance(ALPHA_PER_CELL)


def test_a_slowdown_is_caught_among_processes_that_are_slow_for_life() -> None:
    world = World(noise="slow processes")

    slower = simulate(world, pair_sd=0.01, slowdown=LIMIT)
    same = simulate(world, pair_sd=0.01, slowdown=0.0)

    assert slower.rate("FAIL") >= 0.98
    assert same.rate("FAIL") <= most_by_chance(0.0002)
    assert same.rate("INCONCLUSIVE") <= 0.02


@pytest.mark.parametrize(("pair_sd", "power"), [(0.01, 0.99), (0.02, 0.92)])
def test_a_slowdown_of_the_limit_is_caught(pair_sd: float, power: float) -> None:
    judged = simulate(World(), pair_sd=pair_sd, slowdown=LIMIT)

    assert judged.rate("FAIL") >= power
    assert judged.rate("PASS") <= 0.035


@pytest.mark.parametrize(("pair_sd", "pairs"), [(0.005, 2.1), (0.01, 2.3), (0.02, 3.6)])
def test_identical_code_costs_few_pairs_and_the_mean_at_most_one_more(
    pair_sd: float, pairs: float
) -> None:
    alone = simulate(World(has_mean=False), pair_sd=pair_sd, slowdown=0.0)
    with_mean = simulate(World(), pair_sd=pair_sd, slowdown=0.0)

    assert alone.pairs <= pairs
    assert with_mean.pairs <= pairs + 1
    assert with_mean.rate("PASS") > 0.999


def test_among_many_cells_a_slowdown_of_the_limit_is_caught_without_history() -> None:
    judged = simulate(NO_HISTORY, pair_sd=0.02, slowdown=LIMIT, num_cells=500)

    assert judged.rate("FAIL") >= 0.85


@pytest.mark.parametrize("prior_factor", [1.0, 0.5, None])
@pytest.mark.parametrize("pair_sd", [0.005, 0.02, 0.05])
def test_a_cell_at_its_limit_passes_no_oftener_than_promised_re_runs_included(
    pair_sd: float, prior_factor: float | None
) -> None:
    world = World(prior_factor=prior_factor)

    judged = simulate(world, pair_sd=pair_sd, slowdown=LIMIT, num_reruns=2)

    assert judged.rate("PASS") <= 0.075


def test_a_mean_at_the_limit_passes_no_oftener_than_promised() -> None:
    judged = simulate(World(stalls=LIMIT), pair_sd=0.02, slowdown=0.0)

    assert judged.rate("PASS") <= 0.075


@pytest.mark.parametrize("pair_sd", [0.01, 0.02])
def test_launches_that_are_slow_now_and_then_pass_where_none_was_met(pair_sd: float) -> None:
    judged = simulate(World(slow_launches=0.2), pair_sd=pair_sd, slowdown=0.0)

    assert float(np.mean(judged.words[judged.met_slow] == "PASS")) <= 0.10


def test_no_cell_that_is_faster_by_the_tolerance_is_called_improved_oftener_than_promised() -> None:
    judged = simulate(World(), pair_sd=0.02, slowdown=-TOLERANCE)

    assert judged.rate("IMPROVED") <= most_by_chance(ALPHA_PER_CELL)


def test_a_hopelessly_noisy_cell_fails_no_oftener_and_is_inconclusive() -> None:
    judged = simulate(World(), pair_sd=0.10, slowdown=TOLERANCE)

    assert judged.rate("FAIL") <= most_by_chance(ALPHA_PER_CELL)
    assert judged.rate("INCONCLUSIVE") > 0.5


@pytest.mark.parametrize("max_pairs", [10, 64])
def test_another_budget_keeps_the_promise_at_the_tolerance(max_pairs: int) -> None:
    judged = simulate(
        dataclasses.replace(World(), prior_factor=0.5),
        pair_sd=0.04,
        slowdown=TOLERANCE,
        max_pairs=max_pairs,
        num_sessions=10_000,
    )

    assert judged.rate("FAIL") <= most_by_chance(ALPHA_PER_CELL, 10_000)
