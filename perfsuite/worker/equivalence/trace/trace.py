"""What a training run did, step by step: the data it saw, its gradients, losses and weights.

Each rank leaves a `RankTrace` in a file; `join_traces` makes one `Trace`, all tensors on the CPU.
"""

import hashlib
import math
from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfsuite.worker.dtensor import is_dtensor
from perfsuite.worker.equivalence.comparison import Discrepancy, Quantity, Tensors, relative_error
from perfsuite.worker.equivalence.trace.draws import Draw, RandomState, join_ranks

_ALL_RANKS = "on all ranks that share a batch"


class MicroBatch(NamedTuple):
    """One batch (inputs, target) from the loader, and what was drawn for it."""

    batch: Any
    random_state: RandomState  # before its forward pass
    # torch's, in consecutive parts of the batch, as of a pipeline; None: not recorded.
    draws: list[list[Draw]] | None = None
    # (begin, end, size) where `batch` is a slice of a larger one that the draws are for.
    rows: tuple[int, int, int] | None = None
    # A dimension of samples and heads of attention has those of one head side by side.
    heads_first: bool = False


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model's tensors by the user's names; parameters that are not trained are with the buffers.

    An average of the weights may be one.
    """

    parameters: Tensors
    buffers: Tensors


def read_weights(module: nn.Module) -> Weights:
    """Return copies of the model's parameters and buffers."""
    parameters: Tensors = {}
    buffers = {name: copy_tensor(buffer) for name, buffer in module.named_buffers()}
    for name, parameter in module.named_parameters():
        (parameters if parameter.requires_grad else buffers)[name] = copy_tensor(parameter)
    return Weights(parameters=parameters, buffers=buffers)


def read_left(module: nn.Module, before: Tensors) -> Tensors:
    """Return copies of the buffers, and of parameters that passes have changed from `before`.

    No DTensor is among these: what a forward pass changes is made anew from it.
    """
    now = read_weights(module)
    pairs = ((name, before.get(name, one), one) for name, one in now.parameters.items())
    moved = {n: one for n, old, one in pairs if not (is_dtensor(old) or torch.equal(old, one))}
    return now.buffers | moved


def read_gradients(module: nn.Module) -> Tensors:
    """Return copies of the gradients that exist; sparse ones become dense."""
    return {
        name: copy_tensor(parameter.grad)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def copy_tensor(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU; a DTensor stays one, because making it whole is a collective."""
    copied = tensor.detach()
    if copied.layout is not torch.strided:
        copied = copied.to_dense()
    return copied.clone() if is_dtensor(copied) else copied.to("cpu", copy=True)


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One optimizer step on one rank."""

    micro_batches: list[MicroBatch] = field(default_factory=list)
    loss: float | None  # the mean over this rank's micro-batches; None where another rank has it
    scale: float = 1.0  # the factor of the loss, and so of the gradients
    gradients: Tensors  # after their reduction, before unscaling and clipping
    before: Weights | None = None  # None where no skipped step came between
    after: Weights
    # Buffers before the optimizer's step, if it changed any, and parameters that forward changed.
    unstepped: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What is told alike of one rank and of all of them."""

    start: Weights
    num_skipped: int = 0
    # Parameters whose sparse gradients are recorded as dense, and the most pieces of a row.
    sparse: dict[str, int] = field(default_factory=dict)
    num_calls: Counter[str] | None = None  # of each operator; None where they were not seen
    communicating: frozenset[str] = frozenset()  # the user's modules, in forward passes
    bucket_layout: list[list[str]] = field(default_factory=list)  # DDP's, if a hook depends on it
    num_accumulated: int = 1  # how often a step adds to a gradient, where the recipe does not say
    not_stepped: frozenset[str] = frozenset()  # trained parameters that no optimizer updates
    late: frozenset[str] = frozenset()  # parameters that do not train at first


@dataclass(frozen=True, kw_only=True)
class RankTrace(_Run):
    """What one rank saw and did, less the tensors that the first rank has with the same bits."""

    shard_index: int
    steps: list[RankStep]
    # The dataset's, epoch by epoch and batch by batch.
    indices: list[list[list[int]]] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)  # also those of skipped steps


class Step(NamedTuple):
    """One optimizer step over all ranks."""

    shards: list[list[MicroBatch]]
    losses: list[float]  # the mean of each shard; pp and mp have one
    rank_losses: list[float | None]
    scale: float
    gradients: Tensors
    before: Weights
    after: Weights
    # Those between the last backward pass and the optimizer, and parameters that forward changed.
    buffers: Tensors

    @property
    def mean_loss(self) -> float | None:
        """The mean over the shards; None where none is told."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclass(frozen=True, kw_only=True)
class Trace(_Run):
    """A whole run: a `RankTrace` over all ranks, with indices and batches by shard."""

    indices: list[list[list[list[int]]]]
    batches: list[list[Any]]
    steps: list[Step]
    differences: list[Discrepancy]  # of a rank from the first one that has the same tensor


def save_trace(trace: RankTrace, path: Path) -> None:
    """Write the trace for another process of the same verification."""
    # cloudpickle, because only the user's test file may know the class of a batch.
    torch.save(trace, path, pickle_module=cloudpickle)


def load_traces(paths: Sequence[Path]) -> Trace:
    """Return the run whose ranks wrote these files, in rank order."""
    # Trusted: written a moment ago by our own ranks in a folder of our own.
    return join_traces([torch.load(path, weights_only=False, mmap=True) for path in paths])


def join_traces(ranks: Sequence[RankTrace]) -> Trace:
    """Return the run of all ranks, given in rank order."""
    by_shard: dict[int, list[RankTrace]] = {}
    for rank in ranks:
        by_shard.setdefault(rank.shard_index, []).append(rank)
    sharing = [by_shard[index] for index in sorted(by_shard)]
    shards = [first for first, *_ in sharing]
    differences: list[Discrepancy] = []
    before = start = _join([rank.start for rank in ranks], 0, differences)
    steps: list[Step] = []
    for index in range(len(ranks[0].steps)):
        steps.append(_join_step(ranks, sharing, index, before, differences))
        before = steps[-1].after
    num_calls = [rank.num_calls for rank in ranks if rank.num_calls is not None]
    sparse = sorted((pieces, name) for rank in ranks for name, pieces in rank.sparse.items())
    return Trace(
        start=start,
        steps=steps,
        indices=[rank.indices for rank in shards],
        batches=[rank.batches for rank in shards],
        num_skipped=ranks[0].num_skipped,
        sparse={name: pieces for pieces, name in sparse},  # the most of all ranks
        num_calls=sum(num_calls, Counter()) if len(num_calls) == len(ranks) else None,
        communicating=frozenset().union(*(rank.communicating for rank in ranks)),
        bucket_layout=ranks[0].bucket_layout,
        num_accumulated=max(rank.num_accumulated for rank in ranks),
        not_stepped=frozenset.intersection(*(rank.not_stepped for rank in ranks)),
        late=frozenset.union(*(rank.late for rank in ranks)),
        differences=differences,
    )


def _join_step(
    ranks: Sequence[RankTrace],
    sharing: Sequence[Sequence[RankTrace]],
    index: int,
    before: Weights,
    differences: list[Discrepancy],
) -> Step:
    parts, number = [rank.steps[index] for rank in ranks], index + 1
    gradients = _merge([part.gradients for part in parts], "gradient", number, differences)
    if skipped_to := [part.before for part in parts if part.before is not None]:
        before = _join(skipped_to, index, differences)
    after = _join([part.after for part in parts], number, differences)
    unstepped = _merge([part.unstepped for part in parts], "buffer", number, differences)
    groups = [[rank.steps[index] for rank in group] for group in sharing]
    rank_losses = [part.loss for part in parts]
    losses = [first.loss for first, *_ in groups]
    if None in losses:  # in a pipeline only the rank of the last stage has one
        losses = rank_losses
    return Step(
        shards=[[*_join_micro_batches(group, index, differences)] for group in groups],
        losses=[loss for loss in losses if loss is not None],
        rank_losses=rank_losses,
        scale=parts[0].scale,
        gradients=gradients,
        before=before,
        after=after,
        buffers=after.buffers | unstepped,
    )


def _join_micro_batches(
    ranks: Sequence[RankStep], index: int, differences: list[Discrepancy]
) -> Iterator[MicroBatch]:
    """The micro-batches of ranks that share them; what they draw differently is a difference."""
    for parts in zip(*(rank.micro_batches for rank in ranks), strict=True):
        joined = parts[0]
        draws = [part.draws for part in parts if part.draws is not None]
        if len(draws) == len(parts) > 1:
            chunks, differing = join_ranks(draws)
            differences += [
                Discrepancy("random draw", index + 1, math.inf, 0.0, _ALL_RANKS, operator, rank)
                for rank, operator in differing.items()
            ]
            joined = joined._replace(draws=chunks)
        yield joined


def _join(parts: Sequence[Weights], step: int, differences: list[Discrepancy]) -> Weights:
    return Weights(
        parameters=_merge([part.parameters for part in parts], "parameter", step, differences),
        buffers=_merge([part.buffers for part in parts], "buffer", step, differences),
    )


def _merge(
    parts: Sequence[Tensors], what: Quantity, step: int, differences: list[Discrepancy]
) -> Tensors:
    """Each tensor as the first rank has it; those of later ranks were kept where they differ."""
    merged: Tensors = {}
    for rank, part in enumerate(parts):
        for name, tensor in part.items():
            first = merged.setdefault(name, tensor)
            if first is not tensor and (error := relative_error(tensor, first)):
                differences.append(Discrepancy(what, step, error, 0.0, "on all ranks", name, rank))
    return merged


def share_trace(trace: RankTrace) -> RankTrace:
    """Return the trace with whole tensors, less those that the first rank has with the same bits.

    A collective; without torch.distributed the trace itself.
    """
    if not dist.is_initialized():
        return trace
    weights = trace.start.parameters | trace.start.buffers
    made = _Made() if any(_gather(any(map(is_dtensor, weights.values())))) else None
    start, steps = _share_all(trace.start, made), [_share_all(one, made) for one in trace.steps]
    return replace(trace, start=start, steps=steps)


# What a rank keeps of each DTensor that was made whole, None where an earlier rank has it, by its
# name and the digests of the parts on all ranks.
_Made = dict[tuple[str | None, ...], Tensor | None]


def _share_all(value: Any, made: _Made | None) -> Any:
    if isinstance(value, Weights | RankStep):
        parts = {name: _share_all(part, made) for name, part in vars(value).items()}
        return replace(value, **parts)
    return _share(value, made) if isinstance(value, dict) else value


def _share(tensors: Tensors, made: _Made | None) -> Tensors:
    """What this rank keeps of them; to make a DTensor whole is a collective, and most are frozen.

    No rank has DTensors where `made` is None.
    """
    keys = {} if made is None else _keys_of_dtensors(tensors)
    again = {name: made[key] for name, key in keys.items() if key in made} if made else {}
    whole = {
        name: tensor.full_tensor().cpu() if is_dtensor(tensor) else tensor
        for name, tensor in tensors.items()
        if name not in again
    }
    digests = {name: _digest(tensor) for name, tensor in whole.items()}
    firsts = ChainMap(*_gather(digests)[: dist.get_rank()])
    kept = {name: one for name, one in whole.items() if firsts.get(name) != digests[name]}
    if made is not None:
        made |= {key: kept.get(name) for name, key in keys.items() if name in whole}
    return kept | {name: one for name, one in again.items() if one is not None}


def _keys_of_dtensors(tensors: Tensors) -> dict[str, tuple[str | None, ...]]:
    parts = {
        name: f"{tensor.placements} {_digest(tensor.to_local().cpu())}"
        for name, tensor in tensors.items()
        if is_dtensor(tensor)
    }
    of_ranks = _gather(parts)
    return {name: (name, *(one.get(name) for one in of_ranks)) for name in parts}


def _gather(value: Any) -> list[Any]:
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, value)
    return by_rank


def _digest(tensor: Tensor) -> str:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}"
