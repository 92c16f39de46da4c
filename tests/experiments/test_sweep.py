"""Which number of workers is best, from where more hurt, and what may be advised: by hand."""

from __future__ import annotations

import pytest
from made_up_cells import MadeUpSession, make_outcome

from perfsuite.experiments.interleave import Bench
from perfsuite.experiments.sweep import (
    advise,
    find_hurts_from,
    find_optimum,
    find_within_noise,
    is_slower,
    sweep_workers,
    with_workers,
)
from perfsuite.records.recipe import Recipe

# Three repetitions; the machine is slower in the second by half, which is in every time.
GOOD = (1.0, 1.5, 1.1)
SLOW = (2.0, 3.1, 2.2)
# Its ratios to GOOD are 1.1, 0.93 and 1.0: noise.
LIKE_GOOD = (1.1, 1.4, 1.1)


def test_what_the_machine_did_in_a_repetition_is_in_no_comparison() -> None:
    assert is_slower((1.03, 1.54, 1.13), GOOD)
    assert not is_slower(LIKE_GOOD, GOOD)
    assert not is_slower(GOOD, GOOD)


@pytest.mark.parametrize(
    ("times_s", "optimum"),
    [
        ({0: SLOW, 1: SLOW, 2: GOOD, 3: GOOD}, 2),
        ({0: LIKE_GOOD, 2: GOOD, 4: SLOW}, 0),
        ({0: GOOD}, 0),
        ({4: GOOD, 0: SLOW, 2: LIKE_GOOD}, 2),
    ],
)
def test_the_fewest_workers_within_noise_of_the_best_are_the_optimum(
    times_s: dict[int, tuple[float, ...]], optimum: int
) -> None:
    assert find_optimum(times_s) == optimum


def test_all_numbers_within_noise_of_the_best_are_known() -> None:
    assert find_within_noise({0: SLOW, 1: GOOD, 2: LIKE_GOOD, 3: SLOW}) == [1, 2]


@pytest.mark.parametrize(
    ("times_s", "hurts_from"),
    [
        ({0: SLOW, 1: GOOD, 2: LIKE_GOOD, 3: SLOW, 4: SLOW}, 3),
        ({0: SLOW, 1: GOOD, 2: SLOW, 3: LIKE_GOOD, 4: SLOW}, 4),
        ({0: SLOW, 1: GOOD, 2: SLOW, 3: LIKE_GOOD}, None),
        ({0: GOOD, 1: SLOW}, 1),
        ({0: SLOW, 1: GOOD}, None),
    ],
)
def test_more_workers_hurt_from_where_all_further_ones_are_slower(
    times_s: dict[int, tuple[float, ...]], hurts_from: int | None
) -> None:
    assert find_hurts_from(times_s) == hurts_from


def test_workers_that_gain_beyond_noise_are_advised_with_what_they_gain() -> None:
    times_s = {0: (2.0, 3.0, 2.2), 2: GOOD, 4: SLOW}

    assert advise(times_s) == (
        "use num_workers=2: a step takes 50% less time than with 0 (between 50% and 50%); "
        "from 4 on, more workers hurt"
    )


def test_the_fewest_are_advised_where_no_other_number_can_gain() -> None:
    assert advise({0: GOOD, 1: SLOW}) == (
        "use num_workers=0: no other number makes a step faster; from 1 on, more workers hurt"
    )


def test_where_noise_hides_a_possible_gain_nothing_is_advised() -> None:
    assert advise({0: GOOD, 1: LIKE_GOOD}) is None
    assert advise({3: GOOD}) is None


def test_what_needs_workers_is_left_out_where_there_are_none() -> None:
    recipe = Recipe(num_workers=4, persistent_workers=True, prefetch_factor=3, precision="bf16")

    assert with_workers(recipe, 0) == Recipe(precision="bf16")
    assert with_workers(recipe, 2) == Recipe(
        num_workers=2, persistent_workers=True, prefetch_factor=3, precision="bf16"
    )


def test_a_sweep_measures_loading_and_training_with_every_number() -> None:
    def answer(workload: str, recipe: Recipe, activity: str):  # type: ignore[no-untyped-def]
        return make_outcome([(recipe.num_workers + 1) * (0.002 if activity == "train" else 0.001)])

    session = MadeUpSession(answer)
    bench = Bench(
        session=session,  # type: ignore[arg-type]
        seed=1,
        say=lambda line: None,
        num_repetitions=2,
    )
    training, loading = sweep_workers(bench, "toy-mlp", Recipe(num_workers=2), [0, 2])

    assert training == {0: (0.002, 0.002), 2: (0.006, 0.006)}
    assert loading == {0: (0.001, 0.001), 2: (0.003, 0.003)}
    assert (find_optimum(training), find_hurts_from(training)) == (0, 2)
    assert len(session.measured) == 8
