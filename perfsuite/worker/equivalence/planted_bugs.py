"""Gradients as they would be if a known bug were in the tested path.

Each is made from the reference, so it is what correct code with exactly this one mistake computes.
They are planted to see whether a check finds them, and compared with a path that failed to say what
it probably suffers from. Must not know any limit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from perfsuite.worker.equivalence.limits import SMALLEST_SHARE
from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.equivalence.tensors import Tensors, in_double

# The smallest error of scale that a check must see is 1 / (8 ws).
_SHARE_OF_ONE_RANK = 8


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One mistake and what it makes of the gradients.

    Attributes:
        name: What is wrong, in words.
        cause: What to look for in a path whose gradients are these.
        gradients: What the mistake computes.
    """

    name: str
    cause: str
    gradients: Tensors


def gradient_bugs(gradients: Tensors, names: Collection[str] | None = None) -> Iterator[Bug]:
    """The mistakes that any path can make with its gradients.

    Args:
        gradients: Of a correct path.
        names: The parameters of which one may lose its gradient; None allows all that are large
            enough to have a limit of their own. The smallest of them does.
    """
    norms = _norms(gradients)
    losable = norms if names is None else {name: norms[name] for name in norms if name in names}
    # A gradient of one element looks the same when it is shifted.
    shiftable = {name: norm for name, norm in norms.items() if gradients[name].numel() > 1}
    if losable:
        smallest = min(losable, key=losable.__getitem__)
        yield Bug(
            name=f"the gradient of {smallest!r}, the smallest, is zero",
            cause=f"the gradient of {smallest!r} is lost",
            gradients={**gradients, smallest: torch.zeros_like(gradients[smallest])},
        )
    if shiftable:
        largest = max(shiftable, key=shiftable.__getitem__)
        shifted = gradients[largest].flatten().roll(1).view_as(gradients[largest])
        yield Bug(
            name=f"the gradient of {largest!r}, the largest, is shifted by one element",
            cause=f"the gradient of {largest!r} is written to the wrong place",
            gradients={**gradients, largest: shifted},
        )
    yield Bug(
        name="all gradients are doubled",
        cause="gradients are summed where they are to be averaged, or reduced twice",
        gradients=scaled(gradients, 2.0),
    )


def wrong_scale(gradients: Tensors, world_size: int) -> Bug:
    """The smallest error of scale that a check must see: an eighth of one rank's share."""
    scale = 1 + 1 / (_SHARE_OF_ONE_RANK * world_size)
    return Bug(
        name=f"all gradients are {scale:g} times too large",
        cause="the loss or the gradients are scaled",
        gradients=scaled(gradients, scale),
    )


def reduction_bugs(shares: Sequence[Tensors], comm_hook: str) -> Iterator[Bug]:
    """The mistakes that a reduction of several ranks' gradients can make.

    Args:
        shares: Of each rank, before they are averaged.
        comm_hook: How the reduction compresses when it is right.
    """
    yield Bug(
        name="no synchronisation: each rank keeps its own gradient",
        cause="the gradients are not synchronised: was the last backward inside no_sync()?",
        gradients=shares[0],
    )
    yield Bug(
        name="each rank has the gradient of another",
        cause="a rank takes another rank's gradient for the mean",
        gradients=shares[-1],
    )
    yield Bug(
        name="the last rank's share is lost",
        cause="a rank's share is missing from the mean",
        gradients=scaled(average(shares[:-1], "none"), (len(shares) - 1) / len(shares)),
    )
    # Gradients of 16 bits are not compressed by another format of 16 bits.
    is_wide = all(gradient.dtype.itemsize > 2 for gradient in shares[0].values())
    for hook in ("fp16", "bf16"):
        if comm_hook == "none" and is_wide:
            yield Bug(
                name=f"the reduction is compressed to {hook}",
                cause=f"the reduction is compressed to {hook}: is a communication hook registered?",
                gradients=average(shares, hook),
            )


def lost_micro_batch(gradients: Tensors, which: str) -> Bug:
    """The mistake of leaving the first or the last one out; given the gradients without it."""
    return Bug(
        name=f"the {which} micro-batch is left out",
        cause="a micro-batch of the accumulation is lost",
        gradients=gradients,
    )


def mean_of_means(gradients: Tensors) -> Bug:
    """The mistake of averaging shards of unequal sizes; given the gradients that makes."""
    return Bug(
        name="the mean of unequal shards' means",
        cause="the mean over the batch is a mean of means: do shards or masks differ in size?",
        gradients=gradients,
    )


def lost_samples(gradients: Tensors) -> Bug:
    """The mistake of seeing half of the batch; given the gradients of that half."""
    return Bug(
        name="half of the batch is left out",
        cause="samples of the batch are lost",
        gradients=gradients,
    )


def summed_loss(gradients: Tensors) -> Bug:
    """A loss that sums over the batch, of which means are taken."""
    return Bug(
        name="a loss that is a sum",
        cause="the loss is a sum over the batch; return the mean",
        gradients=gradients,
    )


def scaled(gradients: Tensors, factor: float) -> Tensors:
    """All gradients times a factor, in float64 where they are finer than it needs."""
    return {name: in_double(gradient) * factor for name, gradient in gradients.items()}


def _norms(gradients: Tensors) -> dict[str, float]:
    """The norms of the gradients that are large enough to have a limit of their own."""
    norms = {
        name: float(torch.linalg.vector_norm(in_double(gradient)))
        for name, gradient in gradients.items()
    }
    size = math.hypot(*norms.values())
    return {name: norm for name, norm in norms.items() if norm >= SMALLEST_SHARE * size}
