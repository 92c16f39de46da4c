"""Gradients that correct code with exactly one known mistake would compute.

They are made from the reference. A check is given them to see whether it finds them, and a path
that failed is compared with them to name the likeliest cause.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from perfsuite.worker.equivalence.comparison import Tensors, distance, norm, scaled
from perfsuite.worker.equivalence.limits import ERROR_RATIO, SMALLEST_SHARE
from perfsuite.worker.equivalence.references.averaging import average

# The smallest error of scale that a check must see is 1 / (8 ws).
_SHARE_OF_ONE_RANK = 8


class Bug(NamedTuple):
    """One mistake, the cause to look for, and the gradients of a path that has the mistake."""

    name: str
    cause: str
    gradients: Tensors


def describe_missed(planted: Mapping[str, bool]) -> list[str]:
    """The planted bugs that a check did not find, in one sentence; none if it found all."""
    missed = "; ".join(name for name, is_flagged in planted.items() if not is_flagged)
    return [f"it does not find a planted bug: {missed}"] if missed else []


def gradient_bugs(gradients: Tensors, names: Collection[str] | None = None) -> Iterator[Bug]:
    """The mistakes that any path can make; only the gradients in `names` are ever lost."""
    norms = {name: norm(gradient) for name, gradient in gradients.items()}
    least = SMALLEST_SHARE * math.hypot(*norms.values())
    large = [name for name, size in norms.items() if size >= least]  # with a limit of its own
    if losable := [name for name in large if names is None or name in names]:
        smallest = min(losable, key=norms.__getitem__)
        less = {**gradients, smallest: torch.zeros_like(gradients[smallest])}
        it = f"the gradient of {smallest!r}"
        yield Bug(f"{it}, the smallest, is zero", f"{it} is lost", less)
    # A gradient of one element does not change when it is shifted.
    if shiftable := [name for name in large if gradients[name].numel() > 1]:
        largest = max(shiftable, key=norms.__getitem__)
        shifted = gradients[largest].flatten().roll(1).view_as(gradients[largest])
        it = f"the gradient of {largest!r}"
        name = f"{it}, the largest, is shifted by one element"
        yield Bug(name, f"{it} is written to the wrong place", {**gradients, largest: shifted})
    cause = "gradients are summed where they are to be averaged, or reduced twice"
    yield Bug("all gradients are doubled", cause, scaled(gradients, 2.0))


def wrong_scale(gradients: Tensors, world_size: int, plain_error: float = 0.0) -> Bug:
    """The smallest error of scale that a check must find: an eighth of one rank's share.

    At least four times the error of plain training, where the check allows it twice.
    """
    scale = 1 + max(1 / (_SHARE_OF_ONE_RANK * world_size), 2 * ERROR_RATIO * plain_error)
    cause = "the loss or the gradients are scaled"
    return Bug(f"all gradients are {scale:g} times too large", cause, scaled(gradients, scale))


def reduction_bugs(shares: Sequence[Tensors], comm_hook: str) -> Iterator[Bug]:
    """The mistakes of a reduction with this hook; `shares` are each rank's gradients before it."""
    cause = "the gradients are not synchronised: was the last backward inside no_sync()?"
    yield Bug("no synchronisation: each rank keeps its own gradient", cause, shares[0])
    cause = "a rank takes another rank's gradient for the mean"
    yield Bug("each rank has the gradient of another", cause, shares[-1])
    rest = scaled(average(shares[:-1], "none"), (len(shares) - 1) / len(shares))
    yield Bug("the last rank's share is lost", "a rank's share is missing from the mean", rest)
    # Another format of 16 bits does not compress gradients of 16 bits.
    is_wide = all(gradient.dtype.itemsize > 2 for gradient in shares[0].values())
    for hook in ("fp16", "bf16") if comm_hook == "none" and is_wide else ():
        name = f"the reduction is compressed to {hook}"
        yield Bug(name, f"{name}: is a communication hook registered?", average(shares, hook))


def lost_micro_batch(gradients: Tensors, which: str) -> Bug:
    """`which` is the first or the last of an accumulation."""
    cause = "a micro-batch of the accumulation is lost"
    return Bug(f"the {which} micro-batch is left out", cause, gradients)


def drawn_anew(gradients: Tensors, expected: Tensors) -> Iterator[Bug]:
    """The mistake of drawing other random numbers; none where those draw the same, as a few may."""
    is_same = gradients.keys() == expected.keys()  # else a layer is left out by chance
    if not is_same or any(distance(gradients[name], its) for name, its in expected.items()):
        yield Bug("other random numbers", "random numbers are drawn anew", gradients)


_ASKED = "do shards or masks differ in size, or does the loss relate samples?"
_UNEQUAL_PARTS = f"the mean over the batch is a mean of means: {_ASKED}"
# Each is called with the gradients that the mistake computes.
mean_of_means = partial(Bug, "the mean of unequal shards' means", _UNEQUAL_PARTS)
lost_samples = partial(Bug, "half of the batch is left out", "samples of the batch are lost")
summed_loss = partial(Bug, "a loss that is a sum", "the loss sums over the batch; return the mean")
