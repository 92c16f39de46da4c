"""The model cut into stages that hand activations to each other: "pp" and "mp".

Each rank keeps the modules of its own stages. Training runs the chunks of a batch by a schedule;
evaluation runs whole batches, one stage after the other. Nothing overlaps there: it happens once an
epoch, and a schedule needs batches that divide into chunks, which a split's last batch seldom does.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfsuite.errors import RecipeError
from perfsuite.records.recipe import Recipe
from perfsuite.records.stages import Stage
from perfsuite.records.workload import Workload
from perfsuite.worker.training.batches import map_tensors, tensors_in
from perfsuite.worker.training.checkpointing import checkpoint_units
from perfsuite.worker.training.loaders import build_dataset
from perfsuite.worker.training.parallel.partition import ModelStage, bind_inputs, partition_model
from perfsuite.worker.training.parallel.schedules import ChunkSchedule
from perfsuite.worker.training.parallel.strategy import Strategy
from perfsuite.worker.training.step import eval_mode
from perfsuite.worker.training.trainer import Trainer

# A rank's stages in the interleaved schedule; one would be 1F1B (Narayanan et al. 2021, 2.2).
_INTERLEAVED_STAGES_PER_RANK = 2


class Pipeline(Strategy):
    """The `Strategy` of "pp" and "mp": each rank has the whole batch and computes its stages of it.

    "pp" divides each micro-batch into chunks: the loss is their mean, and BatchNorm sees one at a
    time. "mp" has one chunk, so one rank computes at a time.
    """

    def __init__(self, workload: Workload, recipe: Recipe, device: torch.device) -> None:
        super().__init__(workload, recipe, device)
        plan = recipe.plan
        stages_per_rank = _INTERLEAVED_STAGES_PER_RANK if plan.schedule == "interleaved" else 1
        self._num_stages = plan.size * stages_per_rank
        size = recipe.micro_batch_size or workload.micro_batch_size
        if size % plan.num_chunks:
            raise RecipeError(
                f"parallel {recipe.parallel!r} divides each batch into {plan.num_chunks} chunks, "
                f"and micro_batch_size is {size}; "
                f"use micro_batch_size={-(-size // plan.num_chunks) * plan.num_chunks}"
            )
        self._schedules: dict[tuple[torch.Size, ...], ChunkSchedule] = {}

    def split(self, model: nn.Module) -> nn.Module:
        """The same module without the other ranks' parts; its forward is not called any more."""
        if self.workload.blocks is None:
            raise RecipeError(
                f"parallel {self.recipe.parallel!r} needs the blocks of workload "
                f"{self.workload.name!r}, which names none; add blocks=lambda model: [...] with "
                "the modules to cut between to its Workload"
            )
        blocks = list(self.workload.blocks(model))
        self._signature = inspect.signature(model.forward)
        stages = self._partition(model, blocks)
        self._stages, self._evaluated_stages = self._own(stages), {}
        try:
            with eval_mode(model):  # a recording holds for one mode
                self._evaluated_stages = self._own(self._partition(model, blocks, " in eval mode"))
        except RecipeError as error:
            self.why_not_evaluated = str(error)
        self.speaks_for_shard = self._num_stages - 1 in self._stages
        for name in _called(stages) - _called(self._stages.values()):
            path, _, attribute = name.rpartition(".")
            delattr(model.get_submodule(path), attribute)
        local = {module for stage in self._stages.values() for module in stage.module.modules()}
        self._local_blocks = [block for block in blocks if block in local]
        self._check_segments()
        return model

    def local_blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks of this rank's stages."""
        return self._local_blocks

    def entry_modules(self, model: nn.Module) -> list[nn.Module]:
        """This rank's stages, of training and of evaluation."""
        stages = (*self._stages.values(), *self._evaluated_stages.values())
        return [stage.module for stage in stages]

    def run_micro_batch(
        self, trainer: Trainer, inputs: Any, target: Any, *, is_last: bool, stage: Stage
    ) -> Tensor | None:
        """The mean loss over the chunks on the rank of the last stage; no stage marks a wait."""
        num_chunks, signature = self.recipe.plan.num_chunks, self._signature

        def part(value: Any, index: int) -> Any:
            return map_tensors(value, lambda tensor: tensor.chunk(num_chunks)[index])

        places = range(num_chunks)
        chunks = [(bind_inputs(signature, part(inputs, i)), part(target, i)) for i in places]
        shapes = tuple(tensor.shape for tensor in tensors_in(chunks[0][0]))
        if shapes not in self._schedules:
            self._schedules[shapes] = ChunkSchedule(trainer, self._stages, self._num_stages, chunks)
        return self._schedules[shapes].run(chunks, stage)

    def evaluate(self, trainer: Trainer, inputs: Any) -> Any | None:
        """The outputs on the rank of the last stage, None on the others."""
        # Rank r has the stages r, r + world_size, ...; neighbouring stages are never on one rank.
        given = bind_inputs(self._signature, inputs)
        world_size, last = self.recipe.plan.size, self._num_stages - 1
        outputs: Any = ()
        for index, stage in sorted(self._evaluated_stages.items()):
            activations = () if index == 0 else _receive((index - 1) % world_size, self.device)
            outputs = stage.module(*activations, *(given[name] for name in stage.input_names))
            if index < last:
                _send(outputs, (index + 1) % world_size, self.device)
        return outputs if last in self._evaluated_stages else None

    def _own(self, stages: Iterable[ModelStage]) -> dict[int, ModelStage]:
        rank, size = dist.get_rank(), self.recipe.plan.size
        return {i: stage for i, stage in enumerate(stages) if i % size == rank}

    def _partition(
        self, model: nn.Module, blocks: Sequence[nn.Module], mode: str = ""
    ) -> list[ModelStage]:
        try:
            return partition_model(model, blocks, self._num_stages, self._given_inputs())
        except RecipeError as error:
            found = f"cannot cut the model of workload {self.workload.name!r}{mode}: {error}"
            raise RecipeError(f"parallel {self.recipe.parallel!r} {found}") from error

    def _check_segments(self) -> None:
        if self.recipe.num_segments is None:
            return
        stages = [set(stage.module.modules()) for stage in self._stages.values()]
        for unit in checkpoint_units(self.recipe, self._local_blocks):
            if not any(set(unit) <= stage for stage in stages):
                raise RecipeError(
                    f"checkpointing {self.recipe.checkpointing!r} would recompute blocks of two "
                    f"stages together under parallel {self.recipe.parallel!r}; "
                    f"use segments:{len(self._local_blocks)} or checkpointing='every-block'"
                )

    def _given_inputs(self) -> set[str]:
        parameters = self._signature.parameters
        if all(p.default is inspect.Parameter.empty for p in parameters.values()):
            return set(parameters)
        # Only a sample shows which of the optional ones the model is called with.
        if self.workload.build_loader is not None:
            sample = next(iter(self.workload.own_loader("train", 0, 1)))
        else:
            sample = build_dataset(self.workload, "train")[0]
        return set(bind_inputs(self._signature, sample[0]))


def _called(stages: Iterable[ModelStage]) -> set[str]:
    """The names of all modules and weights that the stages compute with."""
    nodes = (node for stage in stages for node in stage.module.graph.nodes)
    return {str(node.target) for node in nodes if node.op in ("call_module", "get_attr")}


def _send(activations: Sequence[Tensor], target: int, device: torch.device) -> None:
    forms = [(tensor.shape, tensor.dtype) for tensor in activations]
    dist.send_object_list([forms], dst=target, device=device)
    for tensor in activations:
        dist.send(tensor.contiguous(), dst=target)


def _receive(source: int, device: torch.device) -> tuple[Tensor, ...]:
    forms: list[Any] = [None]
    dist.recv_object_list(forms, src=source, device=device)
    activations = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in forms[0])
    for tensor in activations:
        dist.recv(tensor, src=source)
    return activations
