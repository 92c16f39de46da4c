"""One rank's share of a training run, and what a parallel mode does for it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.errors import NotExercisedError
from perfsuite.records.recipe import Recipe
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Workload
from perfsuite.worker.training.mixed_precision import LossScaler, PrecisionPolicy


class Strategy(Protocol):
    """What a parallel mode does at each place where it differs from training on one device.

    Attributes:
        shard_index: The shard of the training data that this rank loads, from 0.
        num_shards: Shards of the training data.
        speaks_for_shard: True on one rank of those that share a shard, which has the outputs.
        why_not_evaluated: Why the model cannot be evaluated; None where it can.
    """

    shard_index: int
    num_shards: int
    speaks_for_shard: bool
    why_not_evaluated: str | None

    @property
    def splits_parameters(self) -> bool:
        """Whether parameters differ between ranks, which must then agree on overflows and norms."""

    def split(self, model: nn.Module) -> nn.Module:
        """The rank's part of the model, on its device; the model itself where nothing is split."""

    def local_blocks(self, model: nn.Module) -> list[nn.Module]:
        """The workload's blocks on this rank after `split`; none if the workload names none."""

    def entry_modules(self, model: nn.Module) -> list[nn.Module]:
        """The modules that this rank calls after `split`: its stages, or the model alone."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The data-parallel wrapper; the model itself where there is none."""

    def build_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The workload's optimizer of the parameters, or of their master weights."""

    def run_micro_batch(
        self, trainer: Trainer, inputs: Any, target: Any, *, is_last: bool, stage: Stage
    ) -> Tensor | None:
        """The detached loss after forward and backward; None where another rank has the loss.

        `inputs` and `target` are on the device, inputs in the precision's dtype. `is_last`: no
        micro-batch of this optimizer step follows.
        """

    def evaluate(self, trainer: Trainer, inputs: Any) -> Any | None:
        """The model's outputs, in whatever mode it is; None where another rank has them."""

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
        unstepped: Parameters with gradients that the optimizer does not step.
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
