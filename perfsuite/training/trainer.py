"""One rank's share of a training run: what it is, and the order in which it is put together.

Must not know how a parallel mode splits or wraps (`parallel` does), nor who measures the stages.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.cells import Recipe
from perfsuite.errors import RecipeError, WorkloadError
from perfsuite.registry import Workload
from perfsuite.stages import Stage
from perfsuite.training.checkpointing import checkpoint_blocks
from perfsuite.training.masters import MasterWeights
from perfsuite.training.precision import (
    PrecisionPolicy,
    autocast_forward,
    cast_parameters,
    precision_policy,
    set_tf32,
)
from perfsuite.training.scaling import LossScaler

# numpy.random.seed takes 32 bits.
_NUMPY_SEEDS = 2**32


class Strategy(Protocol):
    """What a parallel mode does at each place where it differs from training on one device.

    Attributes:
        splits_parameters: Parameters differ between ranks (fsdp, hsdp, tp, pp, mp), so ranks must
            agree on what is infinite, and on the norm of all gradients together.
        shard_index: Which shard of the training data this rank loads, from 0.
        num_shards: Shards into which the training data are divided.
        speaks_for_shard: Of the ranks that share a shard, one that has the outputs of its batches.
        why_not_evaluated: Why the model cannot be evaluated; None where it can.
    """

    splits_parameters: bool
    shard_index: int
    num_shards: int
    speaks_for_shard: bool
    why_not_evaluated: str | None

    def split(self, model: nn.Module) -> nn.Module:
        """The rank's part of the model, on its device; the model itself where none is cut."""

    def local_blocks(self, model: nn.Module) -> list[nn.Module]:
        """The workload's blocks that live on this rank after `split`; none if it names none."""

    def entry_modules(self, model: nn.Module) -> list[nn.Module]:
        """The modules that this rank calls after `split`: its stages, or the model alone."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The data-parallel wrapper; the model itself where there is none."""

    def build_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The workload's optimizer for these, which under master weights are the float32 copies."""

    def run_micro_batch(
        self, trainer: Trainer, inputs: Any, target: Any, *, is_last: bool, stage: Stage
    ) -> Tensor | None:
        """The detached loss after forward and backward; None where another rank has the loss.

        Args:
            trainer: The trainer that takes the step.
            inputs: The model's inputs, on the device and in the precision's dtype.
            target: The loss's target, on the device.
            is_last: No micro-batch of this optimizer step follows.
            stage: Marks "forward" and "backward".
        """

    def evaluate(self, trainer: Trainer, inputs: Any) -> Any | None:
        """The model's outputs, run as it is; None where another rank has them."""

    def finish_gradients(self) -> None:
        """Wait until the gradients of the model's own parameters are reduced over the ranks."""


@dataclass(kw_only=True)
class Trainer:
    """One rank's share of a training run, wrapped and ready to step.

    Attributes:
        workload: What is trained.
        recipe: How it is trained.
        device: Where this rank computes.
        model: What this rank calls, wrapped (DistributedDataParallel, ...); under pp and mp the
            holder of its stage modules.
        module: The same before data-parallel wrapping: its parameter names are the user's.
        optimizer: The workload's, wrapped where the mode or the precision wraps it.
        unstepped: Parameters that have gradients, and that the optimizer leaves alone.
        scaler: The loss scaler; disabled unless the precision scales the loss.
        precision: The recipe's precision.
        strategy: The recipe's parallel mode.
    """

    workload: Workload
    recipe: Recipe
    device: torch.device
    model: nn.Module
    module: nn.Module
    optimizer: Optimizer
    unstepped: list[nn.Parameter]
    scaler: LossScaler
    precision: PrecisionPolicy
    strategy: Strategy


def build_trainer(
    workload: Workload, recipe: Recipe, *, device: torch.device, seed: int
) -> Trainer:
    """Return this rank's trainer, its parts wrapped in the order that stands here.

    Every rank builds from the same seed, so that all start from the same weights. At the end the
    random numbers are seeded anew with `seed + shard_index`: ranks that see other data draw other
    dropout masks, ranks that share a batch draw the same.

    Args:
        workload: What is trained.
        recipe: How it is trained.
        device: Where this rank computes. The default process group is initialised for every mode
            but "single" and "dp".
        seed: Seed of weights and random numbers, the same on every rank.

    Raises:
        RecipeError: The recipe asks for what the workload cannot give.
        WorkloadError: The workload breaks its contract.
    """
    # Imported here because the parallel modes import the step, which imports this module's types.
    from perfsuite.training.parallel import choose_strategy

    precision = precision_policy(recipe.precision)
    strategy = choose_strategy(workload, recipe, device=device)
    set_tf32(precision, device)
    seed_random_numbers(seed)

    model = _build_model(workload)
    cast_parameters(model, precision)
    model.to(device)
    model = strategy.split(model)
    checkpoint_blocks(workload, recipe, strategy.local_blocks(model))
    for entry in strategy.entry_modules(model):
        autocast_forward(entry, precision, device)
    if recipe.compile:
        _compile(model, recipe)
    module, model = model, strategy.wrap(model)
    optimizer = _build_optimizer(workload, strategy, precision, module.parameters())

    seed_random_numbers(seed + strategy.shard_index)
    return Trainer(
        workload=workload,
        recipe=recipe,
        device=device,
        model=model,
        module=module,
        optimizer=optimizer,
        unstepped=_left_alone(optimizer, module),
        scaler=LossScaler(precision, device, agrees_over_ranks=strategy.splits_parameters),
        precision=precision,
        strategy=strategy,
    )


def seed_random_numbers(seed: int) -> None:
    """Seed the generators that models, datasets and augmentations draw from on this rank."""
    random.seed(seed)
    numpy.random.seed(seed % _NUMPY_SEEDS)
    torch.manual_seed(seed)


def _build_model(workload: Workload) -> nn.Module:
    model: object = workload.build_model()
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"workload {workload.name!r}: build_model returned a {type(model).__name__}; "
            "return a torch.nn.Module"
        )
    return model


def _compile(model: nn.Module, recipe: Recipe) -> None:
    # Module.compile binds the compiled call to this very instance, so every replica that
    # DataParallel makes would compute with the parameters of the first.
    if recipe.plan.mode == "dp":
        raise RecipeError(
            f"compile=True cannot be combined with parallel {recipe.parallel!r}: the replicas of "
            "nn.DataParallel would all call the compiled first one; use compile=False or ddp:N"
        )
    # In place, because the module that torch.compile returns renames every parameter.
    model.compile()


def _left_alone(optimizer: Optimizer, module: nn.Module) -> list[nn.Parameter]:
    if isinstance(optimizer, MasterWeights):  # it clears the gradients of all parameters
        return []
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [
        parameter
        for parameter in module.parameters()
        if parameter.requires_grad and id(parameter) not in stepped
    ]


def _build_optimizer(
    workload: Workload,
    strategy: Strategy,
    precision: PrecisionPolicy,
    parameters: Iterable[nn.Parameter],
) -> Optimizer:
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        part = "one rank's part of its model" if strategy.splits_parameters else "its model"
        raise WorkloadError(
            f"workload {workload.name!r}: no parameter of {part} requires a gradient; "
            "leave requires_grad on for what is to be trained"
        )
    if precision.master_weights:
        return MasterWeights(trainable, strategy.build_optimizer)
    return strategy.build_optimizer(trainable)
