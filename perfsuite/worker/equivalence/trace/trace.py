"""What a training run did, step by step: the data it saw, its gradients, losses and weights.

One `RankTrace` is what one rank leaves in a file; `join_traces` makes a `Trace` of all of them. All
tensors lie on the CPU. Must not know how a run is recorded, nor what it is compared with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from perfsuite.worker.equivalence.tensors import Quantity, Tensors
from perfsuite.worker.equivalence.trace.batch_difference import find_differences
from perfsuite.worker.equivalence.trace.random_state import RandomState


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward pass was given.

    Attributes:
        batch: (inputs, target) as the loader gave them.
        random_state: Just before the forward pass.
    """

    batch: Any
    random_state: RandomState


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model's tensors by the user's names."""

    parameters: Tensors
    buffers: Tensors


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one optimizer step runs.

    Attributes:
        num_operators: Operators that the dispatcher ran.
        flops: Of matrix products, convolutions and attention.
    """

    num_operators: int
    flops: int

    def exceeds(self, other: Work) -> bool:
        """Whether something is computed here that is not there."""
        return self.flops > other.flops or self.num_operators > other.num_operators

    def __str__(self) -> str:
        return f"{self.num_operators} operators with {self.flops} flops"


@dataclass(frozen=True, kw_only=True)
class RankDifference:
    """A tensor that is not the same on a rank as on the first rank that has it.

    Attributes:
        step: After which optimizer step, from 1; 0 before the first.
        error: Norm of the difference over the norm of the first rank's.
    """

    quantity: Quantity
    name: str
    step: int
    rank: int
    error: float


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """One optimizer step on one rank.

    Attributes:
        micro_batches: In order.
        loss: The mean over this rank's micro-batches; None where another rank has it.
        scale: By which the loss, and so the gradients, were multiplied.
        gradients: By parameter, reduced over the ranks, before unscaling and clipping; a parameter
            that got none is absent.
        before: Weights before the step, where skipped ones came between; else None, because they
            are those after the step before.
        after: Weights after the step.
    """

    micro_batches: list[MicroBatch]
    loss: float | None
    scale: float
    gradients: Tensors
    before: Weights | None
    after: Weights


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What one rank saw and did. Tensors that an earlier rank has too are left out.

    Attributes:
        shard_index: Which shard of the data it loaded.
        start: Weights before the first step.
        indices: The dataset's indices of each batch that its sampler gives for the first epoch.
        batches: All micro-batches that were loaded, those of skipped steps included.
        steps: Steps that were taken; skipped ones are only counted.
        num_skipped: Steps that the scaler skipped before the last of them.
        sparse: The parameters whose gradients are sparse; they are recorded as dense ones.
        work: Of one further step; None where it cannot be counted.
        bucket_layout: The parameters in each of DDP's buckets, where a hook depends on it.
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
    differences: list[RankDifference] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step over all ranks.

    Attributes:
        shards: The micro-batches of each shard of the data.
        losses: The mean loss of each shard; of pp and mp there is one.
        scale: By which gradients are multiplied.
        gradients: By parameter.
        before: Weights that the step started from.
        after: Weights that it ended with.
    """

    shards: list[list[MicroBatch]]
    losses: list[float]
    scale: float
    gradients: Tensors
    before: Weights
    after: Weights

    @property
    def has_equal_shards(self) -> bool:
        """Whether two shards of the data hold the same samples, so that a mean changes nothing."""
        return any(_are_equal(a, b) for a, b in itertools.combinations(self.shards, 2))


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A whole run; what `RankTrace` says, over all ranks, batches by shard."""

    start: Weights
    indices: list[list[list[int]]]
    batches: list[list[Any]]
    steps: list[Step]
    num_skipped: int
    sparse: frozenset[str]
    work: Work | None
    bucket_layout: list[list[str]]
    differences: list[RankDifference]


def save_trace(trace: RankTrace, path: Path) -> None:
    """Write the trace for another process of the same verification."""
    # cloudpickle, because a batch may be of a class that only the user's test file knows.
    torch.save(trace, path, pickle_module=cloudpickle)


def load_traces(paths: Sequence[Path]) -> Trace:
    """Return the run whose ranks wrote these files, in rank order."""
    # Not untrusted: written a moment ago by our own ranks, in a folder of our own.
    return join_traces([torch.load(path, weights_only=False, mmap=True) for path in paths])


def join_traces(ranks: Sequence[RankTrace]) -> Trace:
    """Return the run of all ranks, given in rank order."""
    by_shard: dict[int, RankTrace] = {}
    for rank in ranks:
        by_shard.setdefault(rank.shard_index, rank)
    shards = [by_shard[index] for index in sorted(by_shard)]
    steps = []
    before = start = _join([rank.start for rank in ranks])
    for index in range(len(ranks[0].steps)):
        parts = [rank.steps[index] for rank in ranks]
        skipped_to = [part.before for part in parts if part.before is not None]
        before = _join(skipped_to) if skipped_to else before
        after = _join([part.after for part in parts])
        losses = [rank.steps[index].loss for rank in shards]
        if None in losses:  # of a pipeline: the rank of its last stage has the only one
            losses = [part.loss for part in parts]
        steps.append(
            Step(
                shards=[rank.steps[index].micro_batches for rank in shards],
                losses=[loss for loss in losses if loss is not None],
                scale=parts[0].scale,
                gradients=_merge([part.gradients for part in parts]),
                before=before,
                after=after,
            )
        )
        before = after
    return Trace(
        start=start,
        steps=steps,
        indices=[rank.indices for rank in shards],
        batches=[rank.batches for rank in shards],
        num_skipped=ranks[0].num_skipped,
        sparse=frozenset().union(*(rank.sparse for rank in ranks)),
        work=_sum([rank.work for rank in ranks]),
        bucket_layout=ranks[0].bucket_layout,
        differences=[difference for rank in ranks for difference in rank.differences],
    )


def _are_equal(one: Sequence[MicroBatch], other: Sequence[MicroBatch]) -> bool:
    mine, its = ([micro_batch.batch for micro_batch in shard] for shard in (one, other))
    return len(mine) == len(its) and not find_differences(mine, its, 1)


def _join(parts: Sequence[Weights]) -> Weights:
    return Weights(
        parameters=_merge([part.parameters for part in parts]),
        buffers=_merge([part.buffers for part in parts]),
    )


def _merge(parts: Sequence[Tensors]) -> Tensors:
    return {name: tensor for part in parts for name, tensor in part.items()}


def _sum(works: Sequence[Work | None]) -> Work | None:
    known = [work for work in works if work is not None]
    if len(known) < len(works):
        return None
    return Work(
        num_operators=sum(work.num_operators for work in known),
        flops=sum(work.flops for work in known),
    )
