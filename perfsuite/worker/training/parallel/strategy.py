"""The base of all parallel modes, which is the mode "single": the whole model on one device."""

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.errors import RecipeError, WorkloadError
from perfsuite.records.recipe import Recipe
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Workload
from perfsuite.worker.dtensor import by_mesh
from perfsuite.worker.training.batches import call_model
from perfsuite.worker.training.step import compute_loss, scale_loss
from perfsuite.worker.training.trainer import Trainer


class Strategy:
    """What a mode does at each place where it may differ from "single", as which it stands here."""

    # On one rank of those that share a shard: that has the outputs.
    speaks_for_shard = True
    why_not_evaluated: str | None = None

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        self.workload, self.recipe = workload, recipe
        self.device = device
        # Of the training data: the parts, and which this rank loads.
        self.num_shards = recipe.plan.data_parallel_size
        self.shard_index = recipe.plan.shard_of(dist.get_rank()) if self.num_shards > 1 else 0
        self.shard = self.shard_index, self.num_shards

    @property
    def splits_parameters(self) -> bool:
        """Whether parameters differ between ranks, which must then agree on overflows and norms."""
        return self.recipe.plan.properties.splits_parameters

    def split(self, model: nn.Module) -> nn.Module:
        """The rank's part of the model, on its device; the model itself where nothing is split."""
        return model

    def local_blocks(self, model: nn.Module) -> list[nn.Module]:
        """The workload's blocks on this rank after `split`; none if the workload names none."""
        return [] if self.workload.blocks is None else list(self.workload.blocks(model))

    def entry_modules(self, model: nn.Module) -> list[nn.Module]:
        """The modules that this rank calls after `split`: its stages, or the model alone."""
        return [model]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The data-parallel wrapper; the model itself where there is none."""
        return model

    def build_optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The workload's optimizer of the parameters, or of their master weights."""
        optimizer = self.workload.build_optimizer(iter(parameters))
        if not isinstance(optimizer, Optimizer):
            found = f"build_optimizer returned a {type(optimizer).__name__}"
            advice = "return a torch.optim.Optimizer"
            raise WorkloadError(f"workload {self.workload.name!r}: {found}; {advice}")
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise WorkloadError(
                f"workload {self.workload.name!r}: {type(optimizer).__name__} needs a closure for "
                "each step, and a recipe has none; use step_benchmark with a step of your own"
            )
        for group in list(optimizer.param_groups):
            group["params"], *others = by_mesh(group["params"]) or [[]]
            for those in others:
                optimizer.add_param_group({**group, "params": those})
        return optimizer

    def run_micro_batch(
        self, trainer: Trainer, inputs: Any, target: Any, *, is_last: bool, stage: Stage
    ) -> Tensor | None:
        """The detached loss after forward and backward; None where another rank has the loss.

        `inputs` and `target` are on the device, inputs in the precision's dtype. `is_last`: no
        micro-batch of this optimizer step follows, so gradients are reduced in it alone.
        """
        self.set_reduction(is_last)
        with stage("forward"):
            outputs = call_model(trainer.model, inputs)
        with stage("backward"):
            loss = compute_loss(trainer, outputs, target)
            scale_loss(trainer, loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def set_reduction(self, is_last: bool) -> None:
        """Let the next backward pass reduce the gradients over the ranks, or only add to them."""

    def evaluate(self, trainer: Trainer, inputs: Any) -> Any | None:
        """The model's outputs, in whatever mode it is; None where another rank has them."""
        return call_model(trainer.model, inputs)

    def finish_gradients(self) -> None:
        """Wait until the gradients of the model's own parameters are reduced over the ranks."""


def refuse_sparse_gradients(model: nn.Module, recipe: Recipe) -> None:
    """Refuse a model with sparse gradients, which DDP reduces over gloo, with most hooks."""
    reducer, instead = f"parallel {recipe.parallel!r}", f", or parallel='ddp:{recipe.plan.size}'"
    if recipe.comm_hook != "none":
        reducer, instead = f"comm_hook {recipe.comm_hook!r}", ", or comm_hook='none'"
    if dist.get_backend() == "nccl":
        reducer, instead = "NCCL", ""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            found = f"{reducer} reduces dense gradients alone, and those of layer {name!r}"
            raise RecipeError(f"{found} are sparse; use sparse=False{instead}")
