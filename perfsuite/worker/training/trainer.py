"""One rank's share of a training run, and how it is put together: the model's parts, in order."""

import pkgutil
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from perfsuite.errors import WorkloadError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training import mixed_precision
from perfsuite.worker.training.checkpointing import checkpoint_blocks

if TYPE_CHECKING:  # it needs the step, which needs the trainer
    from perfsuite.worker.training.parallel.strategy import Strategy

# numpy.random.seed takes 32 bits.
_NUMPY_SEEDS = 2**32


@dataclass(kw_only=True)
class Trainer:
    """One rank's share of a training run, wrapped and ready to step."""

    workload: Workload
    recipe: Recipe
    device: torch.device
    model: nn.Module  # what this rank calls, wrapped (DDP, ...); the holder of its stages (pp, mp)
    module: nn.Module  # the same before data-parallel wrapping: its parameter names are the user's
    optimizer: Optimizer
    unstepped: list[nn.Parameter]  # with gradients, and not the optimizer's, as with master weights
    scaler: mixed_precision.LossScaler
    precision: mixed_precision.PrecisionPolicy
    strategy: "Strategy"


def choose_strategy(workload: Workload, recipe: Recipe, *, device: torch.device) -> "Strategy":
    """Return the recipe's strategy; a RecipeError where it cannot train the workload."""
    name = f"{__package__}.parallel.{recipe.plan.properties.strategy}"
    strategy: Strategy = pkgutil.resolve_name(name)(workload, recipe, device)
    return strategy


def build_trainer(
    workload: Workload, recipe: Recipe, *, device: torch.device, seed: int
) -> Trainer:
    """Return this rank's trainer, its parts wrapped in the order of the code below.

    Every rank builds from the same seed, so that all start from the same weights. At the end the
    random numbers are seeded anew with `seed + shard_index`: ranks that load different data draw
    different dropout masks, and ranks that share a batch draw the same ones.
    """
    precision = mixed_precision.PRECISION_POLICIES[recipe.precision]
    strategy = choose_strategy(workload, recipe, device=device)
    mixed_precision.set_tf32(precision, device)
    seed_random_numbers(seed)

    model = _build_model(workload, precision)
    model = mixed_precision.use_float8(model, workload, precision, device)
    mixed_precision.set_tf32(precision, device)
    mixed_precision.cast_parameters(model, precision)
    model.to(device)
    model = strategy.split(model)
    checkpoint_blocks(workload, recipe, strategy.local_blocks(model))
    for entry in strategy.entry_modules(model):
        mixed_precision.autocast_forward(entry, precision, device)
    if recipe.compile:
        model.compile()  # in place, because torch.compile's module renames every parameter
    module, model = model, strategy.wrap(model)
    optimizer = _build_optimizer(strategy, precision, module)
    stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
    left = [one for one in module.parameters() if one.requires_grad and id(one) not in stepped]

    agrees = strategy.splits_parameters
    seed_random_numbers(seed + strategy.shard_index)
    return Trainer(
        workload=workload,
        recipe=recipe,
        device=device,
        model=model,
        module=module,
        optimizer=optimizer,
        unstepped=left,
        scaler=mixed_precision.LossScaler(precision, device, agrees_over_ranks=agrees),
        precision=precision,
        strategy=strategy,
    )


def seed_random_numbers(seed: int) -> None:
    """Seed the generators that models, datasets and augmentations draw from on this rank."""
    random.seed(seed)
    numpy.random.seed(seed % _NUMPY_SEEDS)
    torch.manual_seed(seed)


def _build_model(workload: Workload, precision: mixed_precision.PrecisionPolicy) -> nn.Module:
    model: object = workload.build_model()
    if not isinstance(model, nn.Module):
        wrong = f"a {type(model).__name__}; return a torch.nn.Module"
    elif any(map(is_lazy, model.parameters())):
        wrong = "parameters without a shape (nn.LazyLinear); run a batch through it there"
    elif torch.float64 in {one.dtype for one in model.parameters()} - {precision.parameter_dtype}:
        wrong = "parameters in float64; build them in float32, or use precision='fp64'"
    elif not model.training:
        wrong = "a model in eval mode, as from_pretrained does; return it after model.train()"
    else:
        for module in model.modules():
            if type(module).train is not nn.Module.train:  # where it may freeze a part of itself
                module.train()
        return model
    raise WorkloadError(f"workload {workload.name!r}: build_model returned {wrong}")


def _build_optimizer(
    strategy: "Strategy", precision: mixed_precision.PrecisionPolicy, module: nn.Module
) -> Optimizer:
    if not (trainable := [one for one in module.parameters() if one.requires_grad]):
        part = "one rank's part of its model" if strategy.splits_parameters else "its model"
        found = f"workload {strategy.workload.name!r}: no parameter of {part} requires a gradient"
        raise WorkloadError(f"{found}; leave requires_grad on for the parameters to train")
    if precision.master_weights:
        return mixed_precision.MasterWeights(trainable, strategy.build_optimizer)
    return strategy.build_optimizer(trainable)
