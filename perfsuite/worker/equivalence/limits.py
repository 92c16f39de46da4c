"""How far two correct computations may differ, derived from the arithmetic alone.

`u` is the machine epsilon of the coarsest arithmetic on the tested path, `ws` the world size and
`A` the number of accumulation steps.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from perfsuite.records.recipe import EPSILONS, Recipe

# The roundings of sums of ws * A terms in two orders have random signs, hence the root; measured
# over five kinds of models on a CPU: 0.55 u with 3 ranks, 0.40 u with 4. 2 allows other kernels.
_REDUCTION_FACTOR = 2
# A sum over a batch has more terms; measured at most 9.2 u with 2 to 4 ranks.
SEMANTIC_FACTOR = 16
# The error of one parameter over that of all together; measured up to 7 (a convolution's bias).
WORST_PARAMETER_FACTOR = 16
# The ratio of two low-precision errors against the same reference; measured 0.96 to 1.14.
# FlashAttention's tests (tests/test_flash_attn.py) and torch._dynamo.utils.same also allow 2.
ERROR_RATIO = 2
# The epsilon of float16 is 2**13 times that of float32, and so are its errors. A path that silently
# stayed in float32 has the errors of float32, so a ratio of 4 separates the two.
LOW_PRECISION_RATIO = 4
# Of the difference of two passes over the same data: it is all that a device may differ by, and a
# record and its reference differ by no more.
_NOISE_FACTOR = 4
# Float32 on a device may be this coarse: Winograd's convolutions are finer, TensorFloat-32 is not.
COARSEST_FLOAT32 = 2.0**-13
# Weights that have moved bring units near to where a ReLU or a maximum changes sides, and rounding
# flips one: measured 1.2e-3 in the third step of a ResNet-18, whose first was off by 4.5e-6.
COARSEST_AFTER_FIRST = 2.0**-8
# Below this share of the whole norm a gradient is lost in the rounding errors of the others
# (the exact gradient of an attention's key bias is 0).
SMALLEST_SHARE = 1e-6


class Limit(NamedTuple):
    """The greatest relative error that rounding explains; 0 requires equal bits."""

    value: float  # for all parameters together
    formula: str
    worst_parameter: float  # for each parameter by itself
    # The part that all elements may have in common: each is multiplied by the same rounded number.
    shared: float = 0.0


BITWISE = Limit(0.0, "bit for bit", 0.0)


def is_low_precision(recipe: Recipe) -> bool:
    """Whether the arithmetic is coarser than float32, so that T2 applies instead of T1."""
    return EPSILONS[recipe.precision] > EPSILONS["fp32"]


def reduction_limit(
    epsilon: float,
    recipe: Recipe,
    device: torch.device,
    *,
    is_ordered: bool = True,
    pieces: int = 1,
) -> Limit:
    """The limit of T0: the same gradients summed over the ranks in two different orders.

    With two ranks a + b and b + a are the same number, so on a CPU gradients are equal bit for bit.
    `epsilon` is of the dtype that they are reduced in. `is_ordered` says whether each element is a
    single sum over the ranks; False for sparse gradients, whose rows may be in several `pieces`.
    """
    num_ranks, num_steps = recipe.plan.world_size, recipe.grad_accumulation_steps
    if is_ordered and num_ranks <= 2 and num_steps == 1 and device.type == "cpu":
        return BITWISE
    limit = _limit(_REDUCTION_FACTOR, epsilon, recipe, pieces)
    # The mean over three ranks multiplies by a third, which is rounded by at most u / 2.
    is_exact = num_ranks & (num_ranks - 1) == 0
    return limit if is_exact else limit._replace(shared=epsilon / 2)


def semantic_limit(
    recipe: Recipe, plain_error: float = 0.0, coarsest: float = COARSEST_FLOAT32
) -> Limit:
    """The limit of T1: the sum over one large batch against the sum over its parts.

    Or twice the error of plain training, which grows with the depth of a model, and on a device by
    its kernels; at most `coarsest`.
    """
    epsilon = EPSILONS[recipe.precision]
    limit = _limit(SEMANTIC_FACTOR, epsilon, recipe)
    if (value := min(ERROR_RATIO * plain_error + epsilon, coarsest)) <= limit.value:
        return limit
    formula = f"{ERROR_RATIO} times the error {plain_error:.1e} of plain training here"
    return Limit(value, formula, WORST_PARAMETER_FACTOR * value)


def above_noise(limit: Limit, noise: float) -> Limit:
    """The limit where the device repeats itself within `noise` alone."""
    if (value := _NOISE_FACTOR * noise) <= limit.value:
        return limit
    formula = f"{_NOISE_FACTOR} times {noise:.1e}, within which the device repeats itself"
    return Limit(value, formula, max(limit.worst_parameter, WORST_PARAMETER_FACTOR * value))


@torch.no_grad()
def nudge(parameters: Iterable[torch.Tensor], *_: object) -> None:
    """Move each element by one rounding, up or down: what a model makes of that is its rounding.

    A computed result is the exact one of weights that are so far off (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 1.5).
    """
    for one in parameters:
        if one.is_floating_point():
            numbers = torch.Generator(one.device).manual_seed(one.numel())
            signs = torch.rand(one.shape, generator=numbers, device=one.device) < 0.5
            one.mul_(1 + torch.finfo(one.dtype).eps * (2.0 * signs - 1))


def _limit(factor: int, epsilon: float, recipe: Recipe, pieces: int = 1) -> Limit:
    num_ranks, num_steps = recipe.plan.world_size, recipe.grad_accumulation_steps
    value = factor * epsilon * math.sqrt(num_ranks * num_steps * pieces)
    k, more = (" k", f", k {pieces}") if pieces > 1 else ("", "")
    formula = f"{factor} u sqrt(ws A{k}), u {epsilon:.1e}, ws {num_ranks}, A {num_steps}{more}"
    return Limit(value, formula, WORST_PARAMETER_FACTOR * value)


def update_limit(
    share: float, formula: str, epsilon: float, size: float, *, pieces: int = 0
) -> Limit:
    """The limit of the weights p after a step D that is off by a share e of itself, in steps |D|.

    e |D| / (u |p|) of the elements of p are rounded to the other side, by u |p| each. The norm of
    that is at most sqrt(e u |p| |D|), by Cauchy and Schwarz. A sparse gradient's row in k `pieces`
    rounds every element k times, at random. `size` is |p| / |D|, and `formula` that of e.
    """
    value, how = share + math.sqrt(share * epsilon * size), "e + sqrt(e u |p| / |D|)"
    if pieces:
        how = f"e + 2 u sqrt(k) |p| / |D|, k {pieces}"
        value = share + 2 * epsilon * math.sqrt(pieces) * size
    return Limit(value, f"{how}, {formula}, u {epsilon:.1e}, in units of the step |D|", value)


def ratio_limit(plain_error: float, epsilon: float) -> Limit:
    """The limit of T2: twice the error of plain training in the same precision, plus `u`.

    `epsilon` is 0 for numbers of 8 bits, whose `u` of 0.125 would hide what is to be seen.
    """
    value = ERROR_RATIO * plain_error + epsilon
    formula = f"{ERROR_RATIO} times the error {plain_error:.1e} of plain training"
    formula += f" + {epsilon:.1e}" if epsilon else ""
    return Limit(value, formula, WORST_PARAMETER_FACTOR * value)
