"""The whole model on one device; every other mode derives from it and overrides what differs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.errors import RecipeError
from perfsuite.records.recipe import Recipe
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Workload
from perfsuite.worker.training.batches import call_model
from perfsuite.worker.training.step import forward_backward
from perfsuite.worker.training.trainer import Trainer


class Single:
    """The `Strategy` of "single"."""

    shard_index = 0
    num_shards = 1
    speaks_for_shard = True
    why_not_evaluated: str | None = None

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        self.workload = workload
        self.recipe = recipe
        self.device = device

    @property
    def splits_parameters(self) -> bool:
        """Whether parameters differ between ranks."""
        return self.recipe.plan.properties.splits_parameters

    def split(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    def local_blocks(self, model: nn.Module) -> list[nn.Module]:
        """All of the workload's blocks; none if it names none."""
        return [] if self.workload.blocks is None else list(self.workload.blocks(model))

    def entry_modules(self, model: nn.Module) -> list[nn.Module]:
        """The model alone."""
        return [model]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    def build_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The workload's optimizer."""
        return self.workload.build_optimizer(iter(parameters))

    def run_micro_batch(
        self, trainer: Trainer, inputs: Any, target: Any, *, is_last: bool, stage: Stage
    ) -> Tensor | None:
        """The loss after forward and backward through the whole model."""
        return forward_backward(trainer, inputs, target, stage)

    def evaluate(self, trainer: Trainer, inputs: Any) -> Any | None:
        """The outputs of the whole model."""
        return call_model(trainer.model, inputs)

    def finish_gradients(self) -> None:
        """Nothing to wait for."""


class DataSharded(Single):
    """The base of the modes where each rank loads its own shard of the data."""

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        super().__init__(workload, recipe, device)
        self.shard_index = dist.get_rank()
        self.num_shards = dist.get_world_size()


def refuse_sparse_gradients(model: nn.Module, recipe: Recipe) -> None:
    """Refuse a model with sparse gradients, which DDP alone reduces, and not under PowerSGD.

    Raises:
        RecipeError: A layer has sparse gradients.
    """
    reducer, instead = f"parallel {recipe.parallel!r}", f"parallel='ddp:{recipe.plan.size}'"
    if recipe.comm_hook != "none":
        reducer, instead = f"comm_hook {recipe.comm_hook!r}", "comm_hook='none'"
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise RecipeError(
                f"{reducer} reduces dense gradients alone, and those of layer {name!r} are sparse; "
                f"use sparse=False, or {instead}"
            )
