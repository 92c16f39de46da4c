"""How far two sets of tensors lie apart, all together and parameter by parameter.

Norms are Frobenius norms in float64. Must not know which computations are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from perfsuite.worker.equivalence.limits import SMALLEST_SHARE, Limit
from perfsuite.worker.equivalence.tensors import Quantity, Tensors, distance, in_double, norm, ratio

# Of a sum of random signs; beyond that one has never been seen (two-sided normal, 2e-9).
_ALIGNMENT_SDS = 6


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One comparison that a check rests on.

    Attributes:
        what: "gradient", "loss", "parameter", "buffer".
        step: Of which optimizer step, from 1.
        error: What was found, at most `limit` in correct code.
        limit: What rounding explains.
        formula: How the limit came about.
        name: The parameter or buffer that it is about, None for all together.
        rank: The rank that it is about, None for all together.
    """

    what: Quantity
    step: int
    error: float
    limit: float
    formula: str
    name: str | None = None
    rank: int | None = None

    @property
    def is_within(self) -> bool:
        """Whether rounding explains the error; never so where something is not finite."""
        return self.error <= self.limit and math.isfinite(self.error)

    @property
    def severity(self) -> float:
        """The error in units of the limit."""
        if self.limit == 0:
            return 0.0 if self.error == 0 else math.inf
        return self.error / self.limit if math.isfinite(self.error) else math.inf


@dataclass(frozen=True)
class Errors:
    """Relative errors of a set of tensors.

    Attributes:
        total: ||tested - expected|| / ||expected|| over all of them.
        by_name: The same of each that is large enough to have one of its own.
        size: ||expected||.
        too_small: The names of those that are not, and not zero either.
    """

    total: float
    by_name: dict[str, float]
    size: float
    too_small: tuple[str, ...] = ()


def measure_errors(tested: Tensors, expected: Tensors) -> Errors:
    """Return how far `tested` lies from `expected`; a tensor that is absent counts as zeros.

    Tensors whose share of the expected norm is below `SMALLEST_SHARE` count in the total alone.
    """
    distances, sizes = {}, {}
    for name in dict.fromkeys((*expected, *tested)):
        mine, its = tested.get(name), expected.get(name)
        if mine is None or its is None:
            present = mine if its is None else its
            assert present is not None
            distances[name] = norm(present)
            sizes[name] = 0.0 if its is None else distances[name]
        else:
            distances[name], sizes[name] = distance(mine, its), norm(its)
    size = math.hypot(*sizes.values())
    least = SMALLEST_SHARE * size
    return Errors(
        total=ratio(math.hypot(*distances.values()), size),
        by_name={
            name: ratio(distances[name], sizes[name])
            for name in distances
            if sizes[name] >= least and sizes[name] > 0
        },
        size=size,
        too_small=tuple(name for name in sizes if 0 < sizes[name] < least),
    )


def measure_buffer_errors(tested: Tensors, expected: Tensors) -> Errors:
    """Return what `measure_errors` does, but for infinities and NaNs that both hold.

    A mask of minus infinity is a buffer like any other.
    """
    tested, expected = dict(tested), dict(expected)
    for name in tested.keys() & expected.keys():
        mine, its = tested[name], expected[name]
        if mine.shape == its.shape:
            alike = (mine == its) | (mine.isnan() & its.isnan())
            shared = alike & ~its.isfinite()
            tested[name] = mine.masked_fill(shared, 0)
            expected[name] = its.masked_fill(shared, 0)
    return measure_errors(tested, expected)


def total_norm(tensors: Tensors) -> float:
    """The norm of all tensors together."""
    return math.hypot(*(norm(tensor) for tensor in tensors.values()))


def judge(
    errors: Errors,
    what: Quantity,
    step: int,
    limit: Limit,
    *,
    parameter_limit: Callable[[str], float] | None = None,
) -> list[Evidence]:
    """Return what the errors prove: of all tensors together, and of the first or worst one.

    Args:
        errors: What was measured.
        what: Of which quantity.
        step: Of which optimizer step.
        limit: What rounding explains.
        parameter_limit: The limit of one parameter; None takes `limit.worst_parameter`.
    """
    limit_of = parameter_limit or (lambda _: limit.worst_parameter)
    single = [
        Evidence(
            what=what,
            step=step,
            error=error,
            limit=limit_of(name),
            formula=f"of one parameter, from {limit.formula}" if limit.value else limit.formula,
            name=name,
        )
        for name, error in errors.by_name.items()
    ]
    total = Evidence(
        what=what, step=step, error=errors.total, limit=limit.value, formula=limit.formula
    )
    first = next((evidence for evidence in single if not evidence.is_within), None)
    worst = first or max(single, key=lambda evidence: evidence.severity, default=None)
    return [total] if worst is None else [total, worst]


def judge_alignment(tested: Tensors, expected: Tensors, step: int, limit: Limit) -> list[Evidence]:
    """Return whether the tested gradients are scaled against the expected ones.

    Rounding errors of single elements point in random directions, so what they add along the
    gradient itself is smaller by the root of the number of elements that carry it. So an error of
    scale is seen where it would drown in the rounding of a low precision.

    Args:
        tested: Gradients.
        expected: Gradients.
        step: Of which optimizer step.
        limit: Of the error in all directions together.
    """
    size = total_norm(expected)
    if size == 0 or limit.value == 0 or not math.isfinite(size):
        return []
    along = fourths = 0.0
    for name in tested.keys() & expected.keys():
        its = in_double(expected[name]) / size
        # The difference first, or its share would be lost in the rounding of the product.
        off = (in_double(tested[name]) - in_double(expected[name])) / size
        along += float((off * its).sum())
        fourths += float(its.square().square().sum())
    # The participation ratio: how many elements would carry the norm if all were equal.
    num_elements = 1 / fourths
    random_share = _ALIGNMENT_SDS / math.sqrt(num_elements)
    return [
        Evidence(
            what="gradient",
            step=step,
            error=abs(along),
            limit=min(limit.value, limit.value * random_share + limit.shared),
            formula=f"along the gradient of {num_elements:.0f} elements, from {limit.formula}",
        )
    ]


def judge_loss(
    tested: float, expected: float, step: int, limit: Limit, *, rank: int | None = None
) -> Evidence:
    """Return what two losses prove."""
    return Evidence(
        what="loss",
        step=step,
        error=ratio(abs(tested - expected), abs(expected)),
        limit=limit.value,
        formula=limit.formula,
        rank=rank,
    )
