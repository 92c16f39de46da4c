from __future__ import annotations

from perfsuite.experiments.verify import every_recipe
from perfsuite.records.parallel import PARALLEL_MODES, PIPELINE_SCHEDULES
from perfsuite.records.recipe import COMM_HOOKS, PRECISIONS


def test_every_value_of_every_axis_is_in_the_table() -> None:
    recipes = list(every_recipe())

    # No workload of ours has a function that parallelizes it.
    assert {recipe.plan.mode for recipe in recipes} == {*PARALLEL_MODES} - {"mesh"}
    assert {recipe.precision for recipe in recipes} == set(PRECISIONS)
    assert {recipe.comm_hook for recipe in recipes} == set(COMM_HOOKS)
    assert {recipe.plan.schedule for recipe in recipes} == {None, *PIPELINE_SCHEDULES}
    assert {recipe.checkpointing for recipe in recipes} == {
        "none",
        "every-block",
        "segments:2",
        "selective",
    }


def test_each_mode_that_has_ranks_runs_on_two_three_and_four_of_them() -> None:
    sizes: dict[str, set[int]] = {}
    for recipe in every_recipe():
        sizes.setdefault(recipe.plan.mode, set()).add(recipe.plan.world_size)

    for mode in ("ddp", "fsdp", "zero1", "zero2", "tp", "pp", "mp", "horovod-like"):
        assert sizes[mode] >= {2, 3, 4}


def test_no_recipe_comes_twice() -> None:
    recipes = list(every_recipe())

    assert len(recipes) == len(set(recipes))
