"""Which class is which mode of `Recipe.parallel`.

Must not know how any of them works.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from perfsuite.errors import NotExercisedError
from perfsuite.records.recipe import Mode, Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training.parallel.data_parallel import (
    DDP,
    DP,
    ZeRO1,
)
from perfsuite.worker.training.parallel.fsdp import FSDP
from perfsuite.worker.training.parallel.horovod import Horovod, HorovodLike
from perfsuite.worker.training.parallel.pipeline import ModelParallel, Pipeline
from perfsuite.worker.training.parallel.single import Single
from perfsuite.worker.training.parallel.tensor_parallel import TensorParallel
from perfsuite.worker.training.trainer import Strategy

_STRATEGIES: dict[Mode, Callable[[Workload, Recipe, torch.device], Strategy]] = {
    "single": Single,
    "dp": DP,
    "ddp": DDP,
    "zero1": ZeRO1,
    "fsdp": FSDP,
    "hsdp": FSDP,
    "tp": TensorParallel,
    "pp": Pipeline,
    "mp": ModelParallel,
    "horovod-like": HorovodLike,
    "horovod": Horovod,
}


def choose_strategy(workload: Workload, recipe: Recipe, *, device: torch.device) -> Strategy:
    """Return what the recipe's parallel mode does.

    Args:
        workload: What is trained.
        recipe: Its `parallel` names the mode.
        device: Where this rank computes. The default process group is initialised for every mode
            but "single" and "dp".

    Raises:
        NotExercisedError: The process group has another size, or the device cannot run the mode.
        RecipeError: The mode cannot train this workload with this recipe, whatever the model.
    """
    plan = recipe.plan
    if plan.mode not in ("single", "dp") and dist.get_world_size() != plan.world_size:
        raise NotExercisedError(
            f"parallel {recipe.parallel!r} needs {plan.world_size} ranks, and the process group "
            f"has {dist.get_world_size()}"
        )
    return _STRATEGIES[plan.mode](workload, recipe, device)
