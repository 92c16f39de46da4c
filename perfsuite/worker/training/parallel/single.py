"""The whole model on one device: what each mode does wherever it does nothing of its own.

Must not know any other mode; the others derive from it and say only where they differ.
"""

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
    """The `Strategy` of "single".

    Attributes:
        shard_index: Which shard of the training data this rank loads.
        num_shards: Shards into which the training data are divided.
        speaks_for_shard: Of the ranks that share a shard, one that has the outputs of its batches.
        why_not_evaluated: Why the model cannot be evaluated; None where it can.
    """

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


def refuse_sparse_gradients(model: nn.Module, reducer: str, instead: str) -> None:
    """Refuse a model whose gradients cannot be reduced.

    Args:
        model: May hold layers of sparse gradients.
        reducer: The setting that cannot reduce them.
        instead: A setting that can.

    Raises:
        RecipeError: A layer has sparse gradients.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise RecipeError(
                f"{reducer} reduces dense gradients alone, and those of layer {name!r} are sparse; "
                f"use sparse=False, or {instead}"
            )


class SharedData(Single):
    """The base of the modes whose ranks each load their own shard of the data."""

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        super().__init__(workload, recipe, device)
        self.shard_index = dist.get_rank()
        self.num_shards = dist.get_world_size()
