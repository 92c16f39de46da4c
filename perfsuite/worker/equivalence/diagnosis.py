"""The likeliest cause of a mismatch: a path that failed is compared with each known bug."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.records.parallel import MeshAxis, ParallelPlan
from perfsuite.worker.equivalence import comparison
from perfsuite.worker.equivalence.comparison import Discrepancy, Tensors, in_double, scaled
from perfsuite.worker.equivalence.planted_bugs import Bug
from perfsuite.worker.equivalence.references.averaging import average

_BATCHNORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# A bug explains a path if it leaves less than a tenth of the error; the right one leaves only
# rounding, a wrong one about the whole error.
_UNEXPLAINED = 0.1
STATEFUL = (
    "the forward pass gives another result each time: the model or the loss keeps a state that is "
    "no buffer, such as a counter; keep it in a buffer"
)
FILLED = (
    "one side has a gradient where the other has none; even by a gradient of zeros, momentum and "
    "decay move a weight"
)
# Two bugs that both leave less than this share of the error differ only in bfloat16's rounding.
_SAME = 1e-2


def explain_gradients(tested: Tensors, expected: Tensors, bugs: Sequence[Bug]) -> str | None:
    """Return the likeliest cause of gradients that differ."""
    if not all(bool(tensor.isfinite().all()) for tensor in tested.values()):
        return (
            "a gradient is not finite: lower the learning rate, or use a precision with more range "
            "that scales the loss or steps float32 weights (amp-bf16, amp-fp16, O2)"
        )
    right, kept = ([n for n, one in its.items() if one.any()] for its in (expected, tested))
    lost = [name for name in right if name not in kept]
    if lost and len(lost) < len(expected):
        return f"the gradient of {', '.join(map(repr, lost[:3]))} is lost: is it detached?"
    bugs = [*bugs, *_any_scale(tested, expected)]
    paths = [expected, *(bug.gradients for bug in bugs)]
    found = [comparison.measure_errors(tested, one) for one in paths]
    error, *left = (one.total * one.size if one.size else math.inf for one in found)
    # The first of those that explain it best, because where batches are alike some bugs are equal.
    least = min(left, default=math.inf)
    enough = max(2 * least, _SAME * error)
    cause = next((bug.cause for bug, rest in zip(bugs, left, strict=True) if rest <= enough), None)
    return cause if least < _UNEXPLAINED * error else None


def explain_weights(discrepancy: Discrepancy) -> str | None:
    """Return the cause of parameters or buffers that differ, or of a loss that is not finite."""
    if discrepancy.what == "loss" and math.isinf(discrepancy.error):
        return "a loss is not finite: look at the data and the model, or lower the learning rate"
    if discrepancy.what == "buffer" and discrepancy.rank is not None:
        found = "BatchNorm, or another forward pass with side effects"
        advice = "use SyncBatchNorm or GroupNorm"
        return f"{found}: each rank keeps the statistics of its own data; {advice}"
    if discrepancy.what == "random draw":
        return "ranks that share a batch draw other numbers: seed them alike"
    if discrepancy.what != "parameter" and discrepancy.step > 0:
        return None
    if discrepancy.rank is not None and discrepancy.step > 0:
        return "no synchronisation: the ranks step by other gradients or settings, or not together"
    if discrepancy.rank is not None:
        return "the ranks begin with other weights: seed them alike, or broadcast the first rank's"
    if discrepancy.step == 0:
        found = "the run does not start from the weights that build_model gives under its seed"
        return f"{found}: are they drawn from a generator of their own?"
    return (
        "the optimizer's step does not follow from the gradients: a norm over one rank's part, "
        "state that another process shares, stale master weights, or a clip before unscaling"
    )


def explain_non_finite(weight: Tensor, optimizer: Optimizer, step: int) -> str | None:
    """Return how a step made a weight infinite and what to use instead; None if it is finite."""
    if (num_bad := int((~weight.isfinite()).sum())) == 0:
        return None
    found = f"{num_bad} of its {weight.numel()} values are infinite or NaN after step {step}"
    kind, eps = str(weight.dtype).removeprefix("torch."), optimizer.defaults.get("eps")
    if eps and not torch.tensor(eps, dtype=weight.dtype):
        return (
            f"{found}: the eps of {type(optimizer).__name__}, {eps:g}, is 0 in {kind}, as squares "
            "of small gradients are, and it divides by both; use eps=1e-6, or a precision that "
            "steps float32 weights (amp-fp16, O2)"
        )
    advice = "lower the learning rate, or clip gradients (clip_grad_norm)"
    if weight.dtype.itemsize < 4:
        advice += ", or use a precision that steps float32 weights (amp-bf16, amp-fp16, O2)"
    return f"{found}: {advice}"


def _any_scale(tested: Tensors, expected: Tensors) -> Iterator[Bug]:
    """The mistake whose factor brings the expected gradients closest to the tested ones."""
    names = tested.keys() & expected.keys()
    product = sum(float((in_double(tested[n]) * in_double(expected[n])).sum()) for n in names)
    square = sum(float(in_double(expected[n]).square().sum()) for n in names)
    if product and square:
        factor = product / square
        found = f"all gradients are {factor:.6g} times what they should be"
        yield Bug("another scale", f"{found}: is one scaled or clipped?", scaled(expected, factor))


def explain_batchnorm(model: nn.Module) -> str | None:
    """Return the cause where the model normalises over the batch that one process sees."""
    if not any(isinstance(one, _BATCHNORM_LAYERS) for one in model.modules()):
        return None
    found = "BatchNorm: each rank, micro-batch or chunk is normalised by its own statistics"
    return f"{found}, which is a different computation; use SyncBatchNorm or GroupNorm"


# What is off by less is off by no whole shard and no whole factor.
_LARGE_ERROR = 0.1


def explain_ranks(failures: Sequence[Discrepancy], plan: ParallelPlan) -> str | None:
    """Return the cause where the ranks along one axis alone disagree."""
    first = min((one.step for one in failures), default=0)
    unlike = [one for one in failures if one.step == first and one.rank is not None]
    if not unlike or unlike[0].what in ("buffer", "random draw"):
        return None
    what = unlike[0].what
    places = [plan.coordinates(one.rank or 0) for one in unlike if one.what == what]
    # Each is compared with the first rank, or with that of its shard: what differs lies off it.
    axes = [axis for axis in _long_axes(plan) if all(place[axis.name] for place in places)]
    if len(axes) != 1 or (what == "loss" and axes[0].divides_batch):  # each rank's is its own
        return None
    ranks = f"the ranks along axis {axes[0].name!r}"
    if first == 0:
        return f"{ranks} start from other weights: make a parameter that is split a DTensor"
    asked = "is a reduction over it forgotten, or not waited for?"
    return f"{ranks} do not have the same {what}: {asked}"


def axis_bugs(plan: ParallelPlan, shares: Sequence[Tensors], expected: Tensors) -> Iterator[Bug]:
    """The mistakes over one axis each; `shares` are the gradients of each shard of the data."""
    for axis in _long_axes(plan):
        it = f"axis {axis.name!r}"
        cause = f"the gradients are summed over {it} where their mean is due"
        yield Bug(f"a sum over {it} in place of a mean", cause, scaled(expected, axis.size))
        if axis.divides_batch:
            firsts = [r for r in range(plan.size) if not plan.coordinates(r)[axis.name]]
            mean = average([shares[n] for n in sorted({*map(plan.shard_of, firsts)})], "none")
            yield Bug(f"no reduction over {it}", f"a reduction over {it} is forgotten", mean)
        else:
            less = {name: _without_last_part(its, axis.size) for name, its in expected.items()}
            cause = f"the ranks of {it} use one shard"
            yield Bug(f"one shard used by all ranks of {it}", cause, less)


def explain_parts(tested: Tensors, expected: Tensors, plan: ParallelPlan) -> str | None:
    """Return the cause where a gradient is a multiple of the right one, or has parts of zero."""
    for name in (name for name in expected if name in tested):
        mine, its = in_double(tested[name]), in_double(expected[name])
        if mine.shape != its.shape or comparison.relative_error(mine, its) < _LARGE_ERROR:
            continue
        for size in sorted({axis.size for axis in _long_axes(plan)}):
            for factor, times, wrong, right in (
                (size, f"{size} times", "summed", "mean"),
                (1 / size, f"1/{size} of", "averaged", "sum"),
            ):
                if comparison.relative_error(mine, its * factor) < _LARGE_ERROR * min(factor, 1):
                    found = f"the gradient of {name!r} is {times} what it should be"
                    due = f"over axis {_names(_long_axes(plan), size)} where its {right} is due"
                    return f"{found}: is it {wrong} {due}?"
        for axis, dim in _cuts(plan.model_axes, its):
            mine_empty, its_empty = (
                any(not part.any() for part in one.chunk(axis.size, dim)) for one in (mine, its)
            )
            if mine.any() and mine_empty and not its_empty:
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
