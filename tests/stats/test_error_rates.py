"""The rule's promises, on 40,000 simulated cells each: seeded, so they hold or they do not."""

from __future__ import annotations

import pytest
from simulation import (
    ALPHA_PER_CELL,
    LIMIT,
    MISSPECIFIED,
    MONTE_CARLO,
    NOMINAL,
    PAIR_SDS,
    TOLERANCE,
    World,
    simulate,
)


@pytest.mark.parametrize("pair_sd", PAIR_SDS)
def test_a_slowdown_of_just_the_tolerance_fails_no_oftener_than_promised(pair_sd: float) -> None:
    rates = simulate(NOMINAL, pair_sd=pair_sd, slowdown=TOLERANCE)

    assert rates.failed <= ALPHA_PER_CELL + MONTE_CARLO


@pytest.mark.parametrize(
    ("pair_sd", "power", "pairs"), [(0.005, 0.999, 3.2), (0.01, 0.99, 5.0), (0.02, 0.95, 10.0)]
)
def test_a_slowdown_of_the_limit_is_caught_with_few_pairs(
    pair_sd: float, power: float, pairs: float
) -> None:
    rates = simulate(NOMINAL, pair_sd=pair_sd, slowdown=LIMIT)

    assert rates.failed >= power
    assert rates.pairs <= pairs


@pytest.mark.parametrize("pair_sd", PAIR_SDS)
@pytest.mark.parametrize("world", MISSPECIFIED, ids=lambda world: world.name)
def test_identical_code_fails_no_oftener_than_promised_where_the_model_is_wrong(
    world: World, pair_sd: float
) -> None:
    rates = simulate(world, pair_sd=pair_sd, slowdown=0.0)

    assert rates.failed <= ALPHA_PER_CELL


@pytest.mark.parametrize("prior_factor", [1.0, None])
@pytest.mark.parametrize("pair_sd", PAIR_SDS)
def test_a_slowdown_of_the_limit_passes_no_oftener_than_promised(
    pair_sd: float, prior_factor: float | None
) -> None:
    rates = simulate(
        World(name="normal", prior_factor=prior_factor), pair_sd=pair_sd, slowdown=LIMIT
    )

    assert rates.passed <= 0.10


def test_identical_code_on_a_quiet_machine_costs_the_first_look_alone() -> None:
    rates = simulate(NOMINAL, pair_sd=0.005, slowdown=0.0)

    assert rates.passed == 1.0
    assert rates.pairs == pytest.approx(3.0, abs=0.01)


def test_a_hopelessly_noisy_cell_fails_no_oftener_and_is_inconclusive() -> None:
    rates = simulate(NOMINAL, pair_sd=0.10, slowdown=TOLERANCE)

    assert rates.failed <= ALPHA_PER_CELL + MONTE_CARLO
    assert rates.inconclusive > 0.5


@pytest.mark.parametrize("max_pairs", [10, 64])
def test_another_budget_keeps_the_promise_at_the_tolerance(max_pairs: int) -> None:
    rates = simulate(
        NOMINAL, pair_sd=0.04, slowdown=TOLERANCE, max_pairs=max_pairs, num_sessions=10_000
    )

    # Three Monte Carlo sd of 10,000 instead of 40,000 are twice as wide.
    assert rates.failed <= ALPHA_PER_CELL + 2 * MONTE_CARLO
