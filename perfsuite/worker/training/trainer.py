"""One rank's share of a training run: what it is, and the order in which it is put together.

Must not know how a parallel mode splits or wraps (`parallel` does), nor who measures the stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.records.recipe import Recipe
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Workload
from perfsuite.worker.training.mixed_precision import (
    LossScaler,
    PrecisionPolicy,
)


class Strategy(Protocol):
    """What a parallel mode does at each place where it differs from training on one device.

    Attributes:
        shard_index: Which shard of the training data this rank loads, from 0.
        num_shards: Shards into which the training data are divided.
        speaks_for_shard: Of the ranks that share a shard, one that has the outputs of its batches.
        why_not_evaluated: Why the model cannot be evaluated; None where it can.
    """

    shard_index: int
    num_shards: int
    speaks_for_shard: bool
    why_not_evaluated: str | None

    @property
    def splits_parameters(self) -> bool:
        """Whether parameters differ between ranks.

        Then ranks must agree on what is infinite, and on the norm of all gradients together.
        """

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
