"""What a training run did, step by step: the data it saw, its gradients, losses and weights.

Each rank leaves a `RankTrace` in a file; `join_traces` makes one `Trace`, all tensors on the CPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from perfsuite.worker.equivalence.comparison import Discrepancy
from perfsuite.worker.equivalence.tensors import Tensors
from perfsuite.worker.equivalence.trace.batch_difference import find_differences
from perfsuite.worker.equivalence.trace.draws import Draw, join_ranks
from perfsuite.worker.equivalence.trace.random_state import RandomState

_ALL_RANKS = "on all ranks that share a batch"


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One batch (inputs, target) from the loader, and what was drawn for it.

    Attributes:
        random_state: That of all generators before its forward pass.
        draws: Those of torch in the forward passes of consecutive parts of the batch: the chunks
            of a pipeline, else one part; None where they were not recorded.
        drawn_anew: The operators that drew in the backward pass what no forward pass had drawn.
        rows: (begin, end, size) where `batch` is a slice of that which the draws are for.
    """

    batch: Any
    random_state: RandomState
    draws: list[list[Draw]] | None = None
    drawn_anew: tuple[str, ...] = ()
    rows: tuple[int, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model's tensors by the user's names.

    Attributes:
        parameters: Those that are trained.
        buffers: The buffers, and the parameters that are not: an average of the weights may be one.
    """

    parameters: Tensors
    buffers: Tensors


def read_weights(module: nn.Module) -> Weights:
    """Return copies of the model's parameters and buffers."""
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    return Weights(
        parameters={name: copy_tensor(tensor) for name, tensor in trained.items()},
        buffers=read_buffers(module),
    )


def read_buffers(module: nn.Module) -> Tensors:
    """Return copies of the model's buffers and of its parameters that are not trained."""
    frozen = {name: one for name, one in module.named_parameters() if not one.requires_grad}
    return {name: copy_tensor(one) for name, one in (dict(module.named_buffers()) | frozen).items()}


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
    return copied.clone() if isinstance(copied, DTensor) else copied.to("cpu", copy=True)


@dataclass(frozen=True)
class Work:
    """The operators that one optimizer step runs, and the flops that they have formulas for."""

    num_operators: int
    flops: int

    def __add__(self, other: Work) -> Work:
        return Work(self.num_operators + other.num_operators, self.flops + other.flops)

    def exceeds(self, other: Work) -> bool:
        """Whether this step computes something that the other does not."""
        return self.flops > other.flops or self.num_operators > other.num_operators

    def __str__(self) -> str:
        return f"{self.num_operators} operators with {self.flops} flops"


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One optimizer step on one rank.

    Attributes:
        loss: The mean over this rank's micro-batches; None where another rank has it.
        scale: The factor of the loss, and so of the gradients.
        gradients: By parameter, after their reduction, before unscaling and clipping.
        before: Weights before the step, where skipped steps came between; otherwise None, because
            they are those after the step before.
        after: Weights after the step.
        unstepped: The buffers before the optimizer's step, if it changed any; otherwise empty.
    """

    micro_batches: list[MicroBatch]
    loss: float | None
    scale: float
    gradients: Tensors
    before: Weights | None
    after: Weights
    unstepped: Tensors = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What one rank saw and did. Tensors that an earlier rank has too are left out.

    Attributes:
        shard_index: The shard of the data that it loaded.
        indices: The dataset's indices in each batch that its sampler draws for the first epoch.
        batches: All micro-batches that were loaded, also those of skipped steps.
        num_skipped: Steps that the scaler skipped before the last one that was taken.
        sparse: The parameters with sparse gradients, which are recorded as dense ones.
        work: That of one further step; None where it cannot be counted.
        bucket_layout: The parameters in each of DDP's buckets, where a hook depends on it.
        num_accumulated: How often a step adds to a gradient, where that is not the recipe's to say.
        differences: Its tensors that differ from those of an earlier rank.
    """

    shard_index: int
    start: Weights
    indices: list[list[int]]
    batches: list[Any]
    steps: list[RankStep]
    num_skipped: int
    sparse: frozenset[str]
    work: Work | None
    bucket_layout: list[list[str]]
    num_accumulated: int = 1
    differences: list[Discrepancy] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step over all ranks.

    Attributes:
        shards: The micro-batches of each shard of the data.
        losses: The mean loss of each shard; pp and mp have one.
        rank_losses: That of each rank; None where another rank has it.
        scale: The factor of the gradients.
        buffers: Between the last backward pass and the optimizer's step.
    """

    shards: list[list[MicroBatch]]
    losses: list[float]
    rank_losses: list[float | None]
    scale: float
    gradients: Tensors
    before: Weights
    after: Weights
    buffers: Tensors

    @property
    def has_equal_shards(self) -> bool:
        """Whether two shards hold the same samples, so that their mean changes nothing."""
        shards = [[micro_batch.batch for micro_batch in shard] for shard in self.shards]
        return any(
            len(one) == len(other) and not find_differences(one, other, 1)
            for one, other in itertools.combinations(shards, 2)
        )


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A whole run: a `RankTrace` over all ranks, with indices and batches by shard."""

    start: Weights
    indices: list[list[list[int]]]
    batches: list[list[Any]]
    steps: list[Step]
    num_skipped: int
    sparse: frozenset[str]
    work: Work | None
    bucket_layout: list[list[str]]
    num_accumulated: int
    differences: list[Discrepancy]


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
    differences = [difference for rank in ranks for difference in rank.differences]
    steps = []
    before = start = _join([rank.start for rank in ranks])
    for index in range(len(ranks[0].steps)):
        parts = [rank.steps[index] for rank in ranks]
        skipped_to = [part.before for part in parts if part.before is not None]
        before = _join(skipped_to) if skipped_to else before
        after = _join([part.after for part in parts])
        losses = [rank.steps[index].loss for rank in shards]
        if None in losses:  # in a pipeline only the rank of the last stage has one
            losses = [part.loss for part in parts]
        steps.append(
            Step(
                shards=[
                    _join_micro_batches([rank.steps[index] for rank in group], index, differences)
                    for group in sharing
                ],
                losses=[loss for loss in losses if loss is not None],
                rank_losses=[part.loss for part in parts],
                scale=parts[0].scale,
                gradients=_merge([part.gradients for part in parts]),
                before=before,
                after=after,
                buffers=after.buffers | _merge([part.unstepped for part in parts]),
            )
        )
        before = after
    works = [rank.work for rank in ranks if rank.work is not None]
    return Trace(
        start=start,
        steps=steps,
        indices=[rank.indices for rank in shards],
        batches=[rank.batches for rank in shards],
        num_skipped=ranks[0].num_skipped,
        sparse=frozenset().union(*(rank.sparse for rank in ranks)),
        work=None if len(works) < len(ranks) else sum(works, start=Work(0, 0)),
        bucket_layout=ranks[0].bucket_layout,
        num_accumulated=max(rank.num_accumulated for rank in ranks),
        differences=differences,
    )


def _join_micro_batches(
    ranks: Sequence[RankStep], index: int, differences: list[Discrepancy]
) -> list[MicroBatch]:
    """The micro-batches of ranks that share them; what they draw differently is a difference."""
    joined = []
    for parts in zip(*(rank.micro_batches for rank in ranks), strict=True):
        draws = [part.draws for part in parts if part.draws is not None]
        if len(draws) == len(parts) > 1:
            chunks, differing = join_ranks(draws)
            differences += [
                Discrepancy("random draw", index + 1, math.inf, 0.0, _ALL_RANKS, operator, rank)
                for rank, operator in differing.items()
            ]
            anew = tuple(itertools.chain.from_iterable(part.drawn_anew for part in parts))
            joined.append(dataclasses.replace(parts[0], draws=chunks, drawn_anew=anew))
        else:
            joined.append(parts[0])
    return joined


def _join(parts: Sequence[Weights]) -> Weights:
    return Weights(
        parameters=_merge([part.parameters for part in parts]),
        buffers=_merge([part.buffers for part in parts]),
    )


def _merge(parts: Sequence[Tensors]) -> Tensors:
    return {name: tensor for part in parts for name, tensor in part.items()}
