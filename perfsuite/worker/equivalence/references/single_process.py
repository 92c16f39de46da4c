"""What one process computes at given weights from given data: the references of all checks.

Each step starts from the weights that the tested run had before it, so a limit covers the rounding
of one step; `checks.optimizer_steps` proves that it ends in the right weights. Must run where
torch.distributed is not initialised.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.references.replay import Replay
from perfsuite.worker.equivalence.trace import trace
from perfsuite.worker.equivalence.trace.draws import (
    Draw,
    draw_one,
    modules_that_drew,
    read_random_state,
    restore_random_state,
)
from perfsuite.worker.training import batches
from perfsuite.worker.training.checkpointing import units_to_shard
from perfsuite.worker.training.mixed_precision import BATCHNORM_LAYERS, PRECISION_POLICIES, set_tf32
from perfsuite.worker.training.step import compute_loss, prepare_batch
from perfsuite.worker.training.trainer import build_trainer

_BUILT_DIFFERENTLY = "the batches are built differently, so they do not make one"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pass:
    """What the forward and backward passes of all micro-batches of a step made."""

    loss: float  # the mean over the micro-batches
    gradients: Tensors  # scaled
    buffers: Tensors  # at the end, and the parameters that the forward passes changed
    draws: list[Draw]  # what the last micro-batch drew, as the run did
    wrong_draw: str | None  # how they differ from what one process draws
    unknown_draw: str | None  # why one process cannot draw them
    has_heads: bool  # samples and heads of attention shared a dimension
    is_packed: bool  # draws were joined that have other numbers of elements than of samples
    drew_outside: str | None  # which module besides torch drew

    def is_as(self, again: "Pass") -> bool:
        """Whether the same pass at the same weights gave the same loss, which may be no number."""
        return repr(self.loss) == repr(again.loss)

    def why_not_repeated(self, *, by_several: bool) -> str | None:
        """Why it did not draw what the run drew; `by_several`: that drew it in several passes."""
        if self.drew_outside is not None and by_several:
            return f"{self.drew_outside} draws random numbers that cannot be told apart by sample"
        return self.unknown_draw


class Reference:
    """One process that computes gradients at given weights.

    Of the recipe it has what decides the mathematics, unless `changes` say otherwise.
    """

    def __init__(
        self, workload: Workload, recipe: Recipe, *, device: torch.device, seed: int, **changes: Any
    ) -> None:
        assert not (dist.is_available() and dist.is_initialized())
        kept = ("precision", "grad_accumulation_steps", "clip_grad_norm")
        fields = {name: getattr(recipe, name) for name in kept} | changes
        if (low := PRECISION_POLICIES[fields["precision"]].fsdp_dtype) is not None:
            fields["precision"] = "fp32"  # of the whole weights, as of the ranks' shards
        self.trainer = build_trainer(workload, Recipe(**fields), device=device, seed=seed)
        self._low, self._gathered = low, [] if low is None else self._gather_in(low, recipe)

    @torch.no_grad()
    def load(self, weights: trace.Weights) -> None:
        """Take these weights, rounded to the recipe's dtypes; the others stay as they are."""
        module = self.trainer.module
        own: Tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        given = weights.parameters | weights.buffers
        for name in own.keys() & given.keys():
            if own[name].shape != given[name].shape:  # a buffer that grows
                own[name].resize_(given[name].shape)
            own[name].copy_(given[name])

    def run(
        self,
        micro_batches: Sequence[trace.MicroBatch],
        *,
        scale: float = 1.0,
        num_chunks: int = 1,
        draws_anew: bool = False,
    ) -> Pass:
        """Return the results of the passes over all micro-batches, at the present weights.

        Each is run with its recorded random state and draws, in chunks along its first dimension.
        `scale` is the loss's factor. With `draws_anew` it draws other random numbers.
        """
        trainer, device = self.trainer, self.trainer.device
        set_tf32(trainer.precision, device)  # another reference may have switched it since
        trainer.module.zero_grad()
        before = trace.read_weights(trainer.module).parameters
        losses, replays, outside = [], [], None
        for micro_batch in micro_batches:
            start, draws = micro_batch.random_state, micro_batch.draws
            restore_random_state(start, device)
            if draws_anew:
                draw_one(device)
                draws = None
            parts, num_rows = [], batches.num_samples(micro_batch.batch)
            for index in range(num_chunks):
                chunk = draws if draws is None or num_chunks == 1 else draws[index : index + 1]
                rows = micro_batch.rows or (0, num_rows, num_rows)
                replay = Replay(chunk, device, rows, heads_first=micro_batch.heads_first)
                with replay, self._gathered_parameters():
                    parts.append(self._run_chunk(micro_batch.batch, index, num_chunks, scale))
                replay.finish()
                replays.append(replay)
            losses.append(torch.stack(parts).mean())
            drew = modules_that_drew(start, read_random_state(device))
            outside = outside or next((one for one in drew if not one.startswith("torch")), None)
            if any(one.startswith("torch") for one in drew):
                replays[-1].expect_draws()
        return Pass(
            loss=float(torch.stack(losses).mean()),
            gradients=trace.read_gradients(trainer.module),
            buffers=trace.read_left(trainer.module, before),
            draws=replays[-1].given,
            wrong_draw=next((how for one in replays for how in one.wrong), None),
            unknown_draw=next((why for one in replays for why in one.unknown), None),
            has_heads=any(one.has_heads for one in replays),
            is_packed=any(one.is_packed for one in replays),
            drew_outside=outside,
        )

    def _run_chunk(self, batch: Any, index: int, num_chunks: int, scale: float) -> Tensor:
        trainer = self.trainer

        def part(tensor: Tensor) -> Tensor:
            # Cloned, because a model may change its inputs in place.
            return tensor.chunk(num_chunks)[index].clone()

        inputs, target = prepare_batch(trainer, batches.map_tensors(batch, part))
        loss = compute_loss(trainer, batches.call_model(trainer.model, inputs), target)
        share = loss / (trainer.recipe.grad_accumulation_steps * num_chunks)
        # A tensor, as the scaler has one: unlike a number, it widens a loss in float16.
        if trainer.scaler.is_enabled():
            share = share * torch.tensor(scale, device=trainer.device)
        share.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _gather_in(self, low: torch.dtype, recipe: Recipe) -> list[Tensor]:
        """Cast inputs and outputs where FSDP does, and return the parameters that it casts."""
        cast, model = batches.cast_floating, self.trainer.module
        units = units_to_shard(recipe, model, self.trainer.strategy.local_blocks(model))
        for module in (model, *itertools.chain(*units)):
            module.register_forward_pre_hook(
                lambda _, *called: cast(called, low), prepend=True, with_kwargs=True
            )
        model.register_forward_hook(lambda *called: cast(called[-1], torch.float32))
        layers = (one for one in model.modules() if isinstance(one, BATCHNORM_LAYERS))
        kept = {*itertools.chain(*(layer.parameters() for layer in layers))}
        return [p for p in model.parameters() if p.is_floating_point() and p not in kept]

    @contextmanager
    def _gathered_parameters(self) -> Iterator[None]:
        """Hold the parameters as FSDP gathers them; it adds up their gradients in float32."""
        whole = [(one, one.data, one.grad) for one in self._gathered]
        for parameter, weights, _ in whole:
            parameter.grad, parameter.data = None, weights.to(self._low)
        try:
            yield
        finally:
            for parameter, weights, total in whole:
                added, parameter.grad, parameter.data = parameter.grad, None, weights
                if added is not None:
                    total = added.to(weights.dtype) if total is None else total + added
                parameter.grad = total


class IncomparableError(ValueError):
    """Several micro-batches do not make one batch, or one process cannot draw what the run drew."""


def one_batch(
    micro_batches: Sequence[trace.MicroBatch], *, heads_first: bool = False
) -> trace.MicroBatch:
    """All samples of several micro-batches as one, or raise `IncomparableError`."""
    joined = _join([micro_batch.batch for micro_batch in micro_batches])
    draws = [micro_batch.draws for micro_batch in micro_batches]
    parts = None if None in draws else [part for one in draws for part in one or ()]
    return micro_batches[0]._replace(batch=joined, draws=parts, heads_first=heads_first)


def slice_batch(micro_batch: trace.MicroBatch, begin: int, end: int) -> trace.MicroBatch:
    """The samples from `begin` up to `end` of a micro-batch."""
    part = batches.map_tensors(micro_batch.batch, lambda tensor: tensor[begin:end])
    rows = (begin, end, batches.num_samples(micro_batch.batch))
    return micro_batch._replace(batch=part, rows=rows)


def why_not_samples(shards: Sequence[Sequence[trace.MicroBatch]]) -> str | None:
    """Return which part of a batch may mean something else once several make one, if any."""
    several = [micro_batch.batch for micro_batch in itertools.chain(*shards)]
    if len(several) < 2:
        return None
    size = batches.num_samples(several[0])
    for tensor in batches.tensors_in(several[0]):
        if tensor.dim() and tensor.shape[0] % size:
            return (
                f"a part of a batch, of shape {tuple(tensor.shape)}, does not have its {size} "
                "samples in the first dimension, so that several batches do not make one"
            )
    if numbers := [one for one in tree_leaves(several[0]) if type(one) in (int, float)]:
        number = f"the number {numbers[0]}, which may be another one for the whole of several"
        return f"a batch holds {number}; give each sample its own, in a tensor"
    return None


def _join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise IncomparableError(_BUILT_DIFFERENTLY)
    if isinstance(first, Tensor):
        if len({tuple(part.shape[1:]) for part in parts}) > 1 or first.dim() == 0:
            found = ", ".join(str(tuple(part.shape)) for part in parts)
            raise IncomparableError(f"batches of shapes {found} do not make one")
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        if any(part.keys() != first.keys() for part in parts):
            raise IncomparableError(_BUILT_DIFFERENTLY)
        joined = {key: _join([part[key] for part in parts]) for key in first}
        return batches.replace_values(first, joined)
    if isinstance(first, list | tuple):
        is_record = hasattr(first, "_fields")
        if not is_record and all(isinstance(item, str) for item in first):
            return type(first)(text for part in parts for text in part)
        if any(len(part) != len(first) for part in parts):
            raise IncomparableError(_BUILT_DIFFERENTLY)
        columns = [_join(column) for column in zip(*parts, strict=True)]
        return type(first)(*columns) if is_record else type(first)(columns)
    return first
