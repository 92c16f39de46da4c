"""The axis of a mesh that a mismatch of the user's own parallelisation points to."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from perfsuite.records.parallel import MeshAxis, ParallelPlan
from perfsuite.worker.equivalence.comparison import Discrepancy
from perfsuite.worker.equivalence.planted_bugs import Bug, scaled
from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.equivalence.tensors import Tensors, in_double, relative_error

# What is off by less is off by no whole shard and no whole factor.
_LARGE_ERROR = 0.1


def explain_ranks(failures: Sequence[Discrepancy], plan: ParallelPlan) -> str | None:
    """Return the cause where the ranks along one axis alone disagree."""
    first = min((one.step for one in failures), default=0)
    unlike = [one for one in failures if one.step == first and one.rank is not None]
    coordinates = [
        plan.coordinates(one.rank)
        for one in unlike
        if one.rank is not None and one.what == unlike[0].what
    ]
    # Each is compared with the first rank, or with that of its shard: what differs lies off it.
    axes = [axis for axis in _long_axes(plan) if all(at[axis.name] for at in coordinates)]
    if not unlike or unlike[0].what == "buffer" or len(axes) != 1:
        return None
    ranks = f"the ranks along axis {axes[0].name!r}"
    if first == 0:
        return f"{ranks} start from other weights: make a parameter that is split a DTensor"
    return f"{ranks} do not have the same {unlike[0].what}: is a reduction over it forgotten?"


def axis_bugs(plan: ParallelPlan, shares: Sequence[Tensors], expected: Tensors) -> Iterator[Bug]:
    """The mistakes over one axis each; `shares` are the gradients of each shard of the data."""
    for axis in _long_axes(plan):
        if axis.divides_batch:
            alone = [shares[shard] for shard in range(len(shares)) if not _along(axis, shard, plan)]
            yield Bug(
                f"no reduction over axis {axis.name!r}",
                f"a reduction over axis {axis.name!r} is forgotten",
                average(alone, "none"),
            )
        yield Bug(
            f"a sum over axis {axis.name!r} in place of a mean",
            f"the gradients are summed over axis {axis.name!r} where their mean is due",
            scaled(expected, axis.size),
        )
        if not axis.divides_batch:
            yield Bug(
                f"one shard used by all ranks of axis {axis.name!r}",
                f"the ranks of axis {axis.name!r} use one shard",
                {name: _without_last_part(its, axis.size) for name, its in expected.items()},
            )


def explain_parts(tested: Tensors, expected: Tensors, plan: ParallelPlan) -> str | None:
    """Return the cause where a gradient is a multiple of the right one, or has parts of zero."""
    for name in (name for name in expected if name in tested):
        mine, its = in_double(tested[name]), in_double(expected[name])
        if mine.shape != its.shape or relative_error(mine, its) < _LARGE_ERROR:
            continue
        for size in sorted({axis.size for axis in _long_axes(plan)}):
            for factor, times, wrong, right in (
                (size, f"{size} times", "summed", "mean"),
                (1 / size, f"1/{size} of", "averaged", "sum"),
            ):
                if relative_error(mine, its * factor) < _LARGE_ERROR * min(factor, 1):
                    return (
                        f"the gradient of {name!r} is {times} what it should be: is it {wrong} "
                        f"over axis {_names(_long_axes(plan), size)} where its {right} is due?"
                    )
        for axis, dim in _cuts(plan.model_axes, its):
            parts = mine.chunk(axis.size, dim)
            if (
                mine.any()
                and any(not part.any() for part in parts)
                and not any(not part.any() for part in its.chunk(axis.size, dim))
            ):
                return (
                    f"a part of the gradient of {name!r} along its dimension {dim} is zero: do "
                    f"the ranks of axis {_names(plan.model_axes, axis.size)} use one shard?"
                )
    return None


def explain_start(tested: Tensor, expected: Tensor, plan: ParallelPlan) -> str | None:
    """Return the cause where the parts of a weight are not those that the ranks should have."""
    # torch's fully_shard splits along the axes of the batch; those of the model are the user's.
    axes = sorted(_long_axes(plan), key=lambda axis: axis.divides_batch)
    for axis, dim in _cuts(axes, expected):
        parts = expected.chunk(axis.size, dim)
        if torch.equal(tested, torch.cat([parts[0]] * axis.size, dim)):
            return f"the ranks of axis {axis.name!r} hold one shard, each the same"
        if torch.equal(tested, torch.cat(parts[::-1], dim)):
            return f"the ranks of axis {axis.name!r} hold each other's shards"
    return None


def _long_axes(plan: ParallelPlan) -> list[MeshAxis]:
    return [axis for axis in plan.axes if axis.size > 1]


def _along(axis: MeshAxis, shard: int, plan: ParallelPlan) -> int:
    """Where the ranks of a shard of the data are along an axis that divides the batch."""
    rank = next(rank for rank in range(plan.size) if plan.shard_of(rank) == shard)
    return plan.coordinates(rank)[axis.name]


def _cuts(axes: Sequence[MeshAxis], tensor: Tensor) -> Iterator[tuple[MeshAxis, int]]:
    """Each axis with each dimension of the tensor that it may split into equal parts."""
    for axis in axes:
        for dim in range(tensor.dim()):
            if tensor.shape[dim] and tensor.shape[dim] % axis.size == 0:
                yield axis, dim


def _without_last_part(gradient: Tensor, size: int) -> Tensor:
    parts = list(in_double(gradient).clone().chunk(size)) if gradient.dim() else []
    if len(parts) == size:
        parts[-1].zero_()
    return torch.cat(parts) if parts else gradient


def _names(axes: Sequence[MeshAxis], size: int) -> str:
    return " or ".join(repr(axis.name) for axis in axes if axis.size == size)
