"""What one process computes at given weights from given data: the references of all checks.

Each step starts from the weights that the tested run had before it, so a limit covers the rounding
of one step and not what many steps of training make of it. `checks.optimizer_steps` proves that
each step ends in the right weights; both together prove the whole run.

Must run where torch.distributed is not initialised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.equivalence.tensors import Tensors
from perfsuite.worker.equivalence.trace.random_state import read_random_state, restore_random_state
from perfsuite.worker.equivalence.trace.trace import (
    MicroBatch,
    Weights,
    read_buffers,
    read_gradients,
)
from perfsuite.worker.training.batches import call_model, map_tensors
from perfsuite.worker.training.build import build_trainer
from perfsuite.worker.training.step import compute_loss, prepare_batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """The mean loss over the micro-batches, the scaled gradients, and the buffers at the end."""

    loss: float
    gradients: Tensors
    buffers: Tensors
    drew_random_numbers: bool


def plain_recipe(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe in one process, without checkpointing and without compiling."""
    kept = ("precision", "grad_accumulation_steps", "clip_grad_norm")
    return Recipe(**{name: getattr(recipe, name) for name in kept} | changes)


class Reference:
    """One process that computes gradients at given weights; its recipe is a `plain_recipe`."""

    def __init__(
        self, workload: Workload, recipe: Recipe, *, device: torch.device, seed: int
    ) -> None:
        assert not (dist.is_available() and dist.is_initialized())
        self.trainer = build_trainer(workload, recipe, device=device, seed=seed)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Take these weights, rounded to the recipe's dtypes; the others stay as they are."""
        module = self.trainer.module
        own: Tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        given = weights.parameters | weights.buffers
        for name in own.keys() & given.keys():
            if own[name].shape != given[name].shape:  # a buffer that grows
                own[name].resize_(given[name].shape)
            own[name].copy_(given[name])

    def run(
        self, micro_batches: Sequence[MicroBatch], *, scale: float = 1.0, num_chunks: int = 1
    ) -> Pass:
        """Return the results of the passes over all micro-batches, at the present weights.

        Each is run with its recorded random state, in chunks along its first dimension. `scale` is
        the factor of the loss, where the precision scales it.
        """
        trainer, device = self.trainer, self.trainer.device
        trainer.module.zero_grad()
        losses = []
        drew = False
        for micro_batch in micro_batches:
            restore_random_state(micro_batch.random_state, device)
            parts = [
                self._run_chunk(micro_batch.batch, index, num_chunks, scale)
                for index in range(num_chunks)
            ]
            losses.append(torch.stack(parts).mean())
            drew |= read_random_state(device).has_moved_from(micro_batch.random_state)
        return Pass(
            loss=float(torch.stack(losses).mean()),
            gradients=read_gradients(trainer.module),
            buffers=read_buffers(trainer.module),
            drew_random_numbers=drew,
        )

    def _run_chunk(self, batch: Any, index: int, num_chunks: int, scale: float) -> Tensor:
        trainer = self.trainer

        def part(tensor: Tensor) -> Tensor:
            # Cloned, because a model may change its inputs in place.
            return tensor.chunk(num_chunks)[index].clone()

        inputs, target = prepare_batch(trainer, map_tensors(batch, part))
        loss = compute_loss(trainer, call_model(trainer.model, inputs), target)
        share = loss / (trainer.recipe.grad_accumulation_steps * num_chunks)
        # A tensor, as the scaler has one: unlike a number, it widens a loss in float16.
        if trainer.scaler.is_enabled():
            share = share * torch.tensor(scale, device=trainer.device)
        share.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class UnjoinableError(ValueError):
    """Several micro-batches do not make one batch."""


def one_batch(micro_batches: Sequence[MicroBatch]) -> MicroBatch:
    """All samples of several micro-batches as one, or raise `UnjoinableError`."""
    joined = _join([micro_batch.batch for micro_batch in micro_batches])
    return dataclasses.replace(micro_batches[0], batch=joined)


def slice_batch(micro_batch: MicroBatch, begin: int, end: int) -> MicroBatch:
    """The samples from `begin` up to `end` of a micro-batch."""
    part = map_tensors(micro_batch.batch, lambda tensor: tensor[begin:end])
    return dataclasses.replace(micro_batch, batch=part)


def _join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise UnjoinableError("the batches are built differently, so they do not make one")
    if isinstance(first, Tensor):
        if len({tuple(part.shape[1:]) for part in parts}) > 1 or first.dim() == 0:
            found = ", ".join(str(tuple(part.shape)) for part in parts)
            raise UnjoinableError(f"batches of shapes {found} do not make one")
        return torch.cat(list(parts))
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            raise UnjoinableError(
                "the batches are dicts of different keys, so they do not make one"
            )
        return {key: _join([part[key] for part in parts]) for key in first}
    if isinstance(first, list | tuple):
        is_record = hasattr(first, "_fields")
        if not is_record and all(isinstance(item, str) for item in first):
            return type(first)(text for part in parts for text in part)
        if any(len(part) != len(first) for part in parts):
            raise UnjoinableError(
                "the batches are lists of different lengths, so they do not make one"
            )
        columns = [_join(column) for column in zip(*parts, strict=True)]
        return type(first)(*columns) if is_record else type(first)(columns)
    return first
