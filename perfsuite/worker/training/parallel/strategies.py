"""The class that trains under a parallel mode, as the mode's row in `PARALLEL_MODES` names it."""

from __future__ import annotations

import importlib

import torch
import torch.distributed as dist

from perfsuite.errors import NotExercisedError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training.trainer import Strategy


def choose_strategy(workload: Workload, recipe: Recipe, *, device: torch.device) -> Strategy:
    """Return the strategy of the recipe's parallel mode.

    The default process group must be initialised for every mode that needs one.

    Raises:
        NotExercisedError: The process group has another size, or the device cannot run the mode.
        RecipeError: The mode cannot train this workload with this recipe, whatever the model.
    """
    plan = recipe.plan
    if plan.needs_group and dist.get_world_size() != plan.world_size:
        raise NotExercisedError(
            f"parallel {recipe.parallel!r} needs {plan.world_size} ranks, and the process group "
            f"has {dist.get_world_size()}"
        )
    module, _, name = plan.properties.strategy.partition(":")
    strategies = importlib.import_module(f"perfsuite.worker.training.parallel.{module}")
    strategy: Strategy = getattr(strategies, name)(workload, recipe, device)
    return strategy
