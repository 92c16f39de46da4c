"""How far two sets of tensors lie apart, all together and tensor by tensor, and within what limit.

Norms are Frobenius norms in float64.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perfsuite.worker.equivalence.limits import SMALLEST_SHARE, Limit

Tensors = dict[str, Tensor]
Quantity = Literal["gradient", "parameter", "buffer", "loss", "random draw", "update"]


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as a view of real numbers, with a last dimension of length 2."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def in_double(tensor: Tensor) -> Tensor:
    """The tensor in float64, `as_real`."""
    return as_real(tensor).double()


def scaled(tensors: Tensors, factor: float) -> Tensors:
    """All tensors times a factor, in float64."""
    return {name: in_double(tensor) * factor for name, tensor in tensors.items()}


def relative_error(tested: Tensor, expected: Tensor) -> float:
    """||tested - expected|| / ||expected||; infinite for other shapes or without a finite norm."""
    return ratio(distance(tested, expected), norm(expected))


def norm(tensor: Tensor) -> float:
    """The Frobenius norm of a tensor."""
    return float(torch.linalg.vector_norm(in_double(tensor)))


def distance(tested: Tensor, expected: Tensor) -> float:
    """||tested - expected||; infinite where their shapes differ."""
    mine, its = in_double(tested), in_double(expected)
    return norm(mine - its) if mine.shape == its.shape else math.inf


def ratio(distance: float, size: float) -> float:
    """Distance / size; 0 where both are 0, infinite where only size is 0 or one is not finite."""
    if not (math.isfinite(distance) and math.isfinite(size)):
        return math.inf
    if distance == 0:
        return 0.0
    return distance / size if size > 0 else math.inf


# Of a sum of random signs; rounding exceeds it once in 5e8 sums (two-sided normal, 2e-9).
_ALIGNMENT_SDS = 6


class Discrepancy(NamedTuple):
    """The relative error that one comparison found, and the one that rounding explains."""

    what: Quantity
    step: int  # an optimizer step from 1, or 0 before the first
    error: float
    limit: float
    formula: str
    name: str | None = None  # None for all tensors together
    rank: int | None = None  # None where no single one differs
    cause: str | None = None  # there if the comparison tells it

    @property
    def is_within(self) -> bool:
        """Whether rounding explains the error; an error that is not finite is never explained."""
        return self.error <= self.limit and math.isfinite(self.error)

    @property
    def severity(self) -> float:
        """The error in units of the limit."""
        if self.limit == 0:
            return 0.0 if self.error == 0 else math.inf
        return self.error / self.limit if math.isfinite(self.error) else math.inf


class Errors(NamedTuple):
    """The relative errors ||tested - expected|| / ||expected|| of tensors."""

    total: float
    by_name: dict[str, float]  # of each tensor that is large enough to have a limit of its own
    size: float  # ||expected||
    too_small: tuple[str, ...] = ()  # the names of the others, except those that are zero


def measure_errors(tested: Tensors, expected: Tensors) -> Errors:
    """Return how far `tested` lies from `expected`; a missing tensor counts as zeros.

    A tensor whose share of the expected norm is below `SMALLEST_SHARE` counts in the total alone.
    """
    distances, sizes = {}, {}
    for name in dict.fromkeys((*expected, *tested)):
        mine = tested[name] if name in tested else torch.zeros_like(expected[name])
        its = expected[name] if name in expected else torch.zeros_like(mine)
        distances[name], sizes[name] = distance(mine, its), norm(its)
    size = math.hypot(*sizes.values())
    least = SMALLEST_SHARE * size
    large = [name for name, its in sizes.items() if its >= least and its > 0]
    return Errors(
        total=ratio(math.hypot(*distances.values()), size),
        by_name={name: ratio(distances[name], sizes[name]) for name in large},
        size=size,
        too_small=tuple(name for name, its in sizes.items() if 0 < its < least),
    )


def measure_buffer_errors(tested: Tensors, expected: Tensors) -> Errors:
    """Return the errors of buffers; what both sides hold is no error, and hides none.

    A buffer may be a mask of large numbers or of minus infinities.
    """
    tested, expected = dict(tested), dict(expected)
    for name in tested.keys() & expected.keys():
        mine, its = in_double(tested[name]), in_double(expected[name])
        if mine.shape == its.shape:
            alike = (mine == its) | (mine.isnan() & its.isnan())
            if alike.all():
                del tested[name], expected[name]
            elif (shared := alike & ~its.isfinite()).any():
                tested[name] = mine.masked_fill(shared, 0)
                expected[name] = its.masked_fill(shared, 0)
    return measure_errors(tested, expected)


def coarsest_epsilon(tensors: Tensors) -> float:
    """The largest epsilon of the tensors' dtypes; 0 where there are none."""
    return max((torch.finfo(tensor.dtype).eps for tensor in tensors.values()), default=0.0)


def total_norm(tensors: Tensors) -> float:
    """The norm of all tensors together."""
    return math.hypot(*(norm(tensor) for tensor in tensors.values()))


def judge(
    what: Quantity,
    tested: Tensors,
    expected: Tensors,
    step: int,
    limit: Limit,
    *,
    parameter_limit: Callable[[str], float] | None = None,
) -> list[Discrepancy]:
    """Return the discrepancy of all tensors together, and of the first that fails or the worst one.

    `parameter_limit` gives the limit of one parameter instead of `limit.worst_parameter`.
    """
    errors = (measure_buffer_errors if what == "buffer" else measure_errors)(tested, expected)
    limit_of = parameter_limit or (lambda _: limit.worst_parameter)
    formula = f"of one parameter, from {limit.formula}" if limit.value else limit.formula
    single = [
        Discrepancy(what, step, error, limit_of(name), formula, name=name)
        for name, error in errors.by_name.items()
    ]
    total = Discrepancy(what, step, errors.total, limit.value, limit.formula)
    first = next((one for one in single if not one.is_within), None)
    worst = first or max(single, key=lambda one: one.severity, default=None)
    return [total] if worst is None else [total, worst]


def step_length(expected: Tensors, before: Tensors) -> float:
    """The distance that a step moves weights; 1 where it moves none."""
    return math.hypot(*(distance(its, before[name]) for name, its in expected.items())) or 1.0


def judge_update(
    what: Quantity, tested: Tensors, expected: Tensors, before: Tensors, step: int, limit: Limit
) -> Discrepancy:
    """Return the error of all weights after a step together, in units of the step's length."""
    off = measure_errors(tested, expected)
    length = step_length(expected, before)
    error = off.total * off.size / length if 0 < off.total < math.inf else off.total
    name = next((name for name, error in off.by_name.items() if error), None)
    return Discrepancy(what, step, error, limit.value, limit.formula, name)


def judge_alignment(
    tested: Tensors, expected: Tensors, step: int, limit: Limit
) -> list[Discrepancy]:
    """Return how far the tested gradients are off along the expected ones: an error of scale.

    The rounding errors of single elements point in random directions, so their part along the
    gradient is smaller by the root of the number of elements that carry it. This shows an error of
    scale that the rounding of a low precision would hide.
    """
    if (size := total_norm(expected)) == 0 or limit.value == 0 or not math.isfinite(size):
        return []
    along = fourths = 0.0
    for name in tested.keys() & expected.keys():
        its = in_double(expected[name]) / size
        # Subtracted first: its share would be lost in the rounding of the product.
        off = (in_double(tested[name]) - in_double(expected[name])) / size
        along += float((off * its).sum())
        fourths += float(its.square().square().sum())
    # The participation ratio: how many elements would carry the norm if all were equal.
    num_elements = 1 / fourths
    random_share = _ALIGNMENT_SDS / math.sqrt(num_elements)
    limit_along = min(limit.value, limit.value * random_share + limit.shared)
    formula = f"along the gradient of {num_elements:.0f} elements, from {limit.formula}"
    return [Discrepancy("gradient", step, abs(along), limit_along, formula)]


def judge_draws(wrong: str | None, step: int) -> list[Discrepancy]:
    """Return the discrepancy of a run that draws other random numbers than one process does."""
    if wrong is None:
        return []
    return [Discrepancy("random draw", step, math.inf, 0.0, "call by call", cause=wrong)]


def judge_losses(
    tested: Sequence[float], expected: Sequence[float], step: int, limit: Limit
) -> list[Discrepancy]:
    """Return the discrepancy of each loss; of several losses each is that of one rank."""
    errors = [ratio(abs(mine - its), abs(its)) for mine, its in zip(tested, expected, strict=True)]
    ranks: Sequence[int | None] = [None] if len(errors) == 1 else range(len(errors))
    return [
        Discrepancy("loss", step, error, limit.value, limit.formula, rank=rank)
        for rank, error in zip(ranks, errors, strict=True)
    ]
