"""Who computes which chunk of a batch when: the schedules of torch.distributed.pipelining.

Only activations and a chunk's number pass through a schedule, because its own splitting knows no
nested targets and its merging no nested outputs. Its stages get all shapes, or they would run the
model on made-up numbers, which before torch 2.15 moves BatchNorm's statistics and draws numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from perfsuite.errors import RecipeError
from perfsuite.records.stages import Stage, untimed
from perfsuite.worker.training.parallel.partition import ModelStage
from perfsuite.worker.training.step import compute_loss, scale_loss
from perfsuite.worker.training.trainer import Trainer

# Stands for the outputs of the last stage; the real ones never pass through the schedule.
_NUMBER = torch.zeros(1, dtype=torch.int64)
# A part of a batch along its first dimension: inputs by the names of forward's parameters, target.
Chunk = tuple[Mapping[str, Any], Any]


class ChunkSchedule:
    """Runs batches of one shape through the stages of all ranks, by the recipe's schedule.

    `stages` are this rank's, by number; rank r has r, r + world_size, ... of `num_stages`. `chunks`
    are a first batch, for its shapes, and the same on every rank.
    """

    def __init__(
        self,
        trainer: Trainer,
        stages: Mapping[int, ModelStage],
        num_stages: int,
        chunks: Sequence[Chunk],
    ) -> None:
        self._trainer, self._stages = trainer, stages
        self._num_stages = num_stages
        self._chunks: Sequence[Chunk] = chunks
        self._outputs: dict[int, Any] = {}
        self._losses: list[Tensor] = []
        self._mark: Stage = untimed
        self._schedule = self._build(trainer.recipe.plan.schedule)

    def run(self, chunks: Sequence[Chunk], stage: Stage) -> Tensor | None:
        """Run all chunks; the detached mean loss on the rank of the last stage, else None."""
        self._chunks, self._losses, self._mark = chunks, [], stage
        numbers = torch.arange(len(chunks))
        self._schedule.step(target=numbers, number=numbers, return_outputs=False)
        # The batch is not needed any more and would count as memory of the next step.
        self._chunks = ()
        return torch.stack(self._losses).mean() if self._losses else None

    def compute_stage(self, index: int, activations: Sequence[Tensor], number: Tensor) -> Any:
        """Return a stage's activations for a chunk, or in the last stage the chunk's number."""
        chunk = int(number)
        stage = self._stages[index]
        given, _ = self._chunks[chunk]
        outputs = stage.module(*activations, *[given[name] for name in stage.input_names])
        if index < self._num_stages - 1:
            return outputs
        self._outputs[chunk] = outputs
        return number

    def _build(self, name: str | None) -> Any:
        entering = self._activations()
        leaving = [*entering[1:], (_NUMBER,)]
        stages = [
            _MarkedStage(
                _StageOfChunk(self, index),
                index,
                self._num_stages,
                self._trainer.device,
                input_args=entering[index],
                output_args=leaving[index],
                mark=lambda name: self._mark(name),
            )
            for index in self._stages
        ]
        # `_compute_loss` divides: scaling the gradients would scale accumulated ones again.
        options: dict[str, Any] = {"loss_fn": self._compute_loss, "scale_grads": False}
        if name == "interleaved":
            return pipelining.ScheduleInterleaved1F1B([*stages], len(self._chunks), **options)
        (stage,) = stages
        # "mp" has but one chunk.
        schedule = pipelining.Schedule1F1B if name == "1f1b" else pipelining.ScheduleGPipe
        return schedule(stage, len(self._chunks), **options)

    def _compute_loss(self, number: Tensor, target: Tensor) -> Tensor:
        with self._mark("backward"):
            chunk = int(number)
            _, wanted = self._chunks[chunk]
            loss = compute_loss(self._trainer, self._outputs.pop(chunk), wanted)
            self._losses.append(loss.detach())
            return scale_loss(self._trainer, loss) / len(self._chunks)

    def _activations(self) -> list[tuple[Tensor, ...]]:
        entering: list[tuple[Tensor, ...]] = [()]
        device, world_size = self._trainer.device, dist.get_world_size()
        for index in range(self._num_stages - 1):
            forms = [self._probe(index, entering[-1]) if index in self._stages else []]
            dist.broadcast_object_list(forms, src=index % world_size, device=device)
            empty = partial(torch.empty, device="meta", requires_grad=True)
            entering.append(tuple(empty(shape, dtype=dtype) for shape, dtype in forms[0]))
        return entering

    def _probe(self, index: int, inputs: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
        """Shapes and dtypes of a stage's activations, from a run that leaves no trace."""
        device = self._trainer.device
        activations = [torch.zeros_like(tensor, device=device) for tensor in inputs]
        buffers = [(b, b.clone()) for b in self._stages[index].module.buffers()]
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            outputs = self.compute_stage(index, activations, _NUMBER)
            for buffer, value in buffers:
                buffer.copy_(value)
        for output in outputs:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
                raise RecipeError(
                    f"parallel {self._trainer.recipe.parallel!r}: stage {index} of workload "
                    f"{self._trainer.workload.name!r} would hand a {kind} to the next, and only "
                    "floating tensors have gradients; compute it from the model's inputs alone, or "
                    "inside the block that needs it"
                )
        return [(output.shape, output.dtype) for output in outputs]


class _StageOfChunk(nn.Module):
    """The module that a schedule calls: a stage, with the inputs of the chunk of that number."""

    def __init__(self, schedule: ChunkSchedule, index: int) -> None:
        super().__init__()
        self._schedule, self._index = schedule, index

    def forward(self, *activations: Tensor, number: Tensor) -> Any:
        return self._schedule.compute_stage(self._index, activations, number)


class _MarkedStage(pipelining.PipelineStage):
    """A stage that marks its computations, and not its waiting."""

    def __init__(self, *args: Any, mark: Callable[[str], Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._mark = mark

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._mark("forward"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._mark("backward"):
            return super().backward_one_chunk(*args, **kwargs)
