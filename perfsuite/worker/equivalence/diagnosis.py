"""The likeliest cause of a mismatch: a path that failed is compared with each known bug."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.worker.equivalence.comparison import Discrepancy, measure_errors
from perfsuite.worker.equivalence.planted_bugs import Bug, scaled
from perfsuite.worker.equivalence.tensors import Tensors, in_double

_BATCHNORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# A bug explains a path if it leaves less than a tenth of the error; the right one leaves only
# rounding, a wrong one about the whole error.
_UNEXPLAINED = 0.1
# Two bugs that both leave less than this share of the error differ only in rounding.
_SAME = 1e-3


def explain_gradients(tested: Tensors, expected: Tensors, bugs: Sequence[Bug]) -> str | None:
    """Return the likeliest cause of gradients that differ."""
    if not all(bool(tensor.isfinite().all()) for tensor in tested.values()):
        return (
            "a gradient is not finite: lower the learning rate, or use a precision with more range "
            "that scales the loss or steps float32 weights (amp-bf16, amp-fp16, O2)"
        )
    lost = [
        name
        for name, gradient in expected.items()
        if bool(gradient.any()) and not (name in tested and bool(tested[name].any()))
    ]
    if lost and len(lost) < len(expected):
        return f"the gradient of {', '.join(map(repr, lost[:3]))} is lost: is it detached?"
    return _matching_bug(tested, expected, bugs) or _scale(tested, expected)


def explain_weights(discrepancy: Discrepancy) -> str | None:
    """Return the cause of parameters or buffers that differ, or of a loss that is not finite."""
    if discrepancy.what == "loss" and math.isinf(discrepancy.error):
        return "a loss is not finite: lower the learning rate, or look at the data"
    if discrepancy.what == "buffer" and discrepancy.rank is not None:
        return (
            "BatchNorm, or another forward pass with side effects: each rank keeps the statistics "
            "of its own data; use SyncBatchNorm or GroupNorm"
        )
    if discrepancy.what == "random draw":
        return "ranks that share a batch draw other numbers: seed them alike"
    if discrepancy.what != "parameter" and discrepancy.step > 0:
        return None
    if discrepancy.rank is not None:
        return "no synchronisation: the ranks step by different gradients, or not together"
    if discrepancy.step == 0:
        return (
            "the run does not start from the weights that build_model gives under its seed: are "
            "they drawn from a generator of their own?"
        )
    return (
        "the optimizer's step does not follow from the gradients: stale master weights, gradients "
        "clipped before they are unscaled, or state that another process shares"
    )


def explain_non_finite(weight: Tensor, optimizer: Optimizer, step: int) -> str | None:
    """Return how a step made a weight infinite and what to use instead; None if it is finite."""
    num_bad = int((~weight.isfinite()).sum())
    if num_bad == 0:
        return None
    found = f"{num_bad} of its {weight.numel()} values are infinite or NaN after step {step}"
    kind, eps = str(weight.dtype).removeprefix("torch."), optimizer.defaults.get("eps")
    if eps and not torch.tensor(eps, dtype=weight.dtype):
        return (
            f"{found}: the eps of {type(optimizer).__name__}, {eps:g}, is 0 in {kind}, as squares "
            "of small gradients are, and it divides by both; use eps=1e-6, or a precision that "
            "steps float32 weights (amp-fp16, O2)"
        )
    wider = "" if weight.dtype.itemsize >= 4 else f", or step float32 weights, not {kind} (O2)"
    return f"{found}: lower the learning rate, or clip gradients (clip_grad_norm){wider}"


def _matching_bug(tested: Tensors, expected: Tensors, bugs: Sequence[Bug]) -> str | None:
    error = measure_errors(tested, expected).total
    left = [(measure_errors(tested, bug.gradients).total, bug.cause) for bug in bugs]
    # The first of those that explain it best, because where batches are alike some bugs are equal.
    least = min((unexplained for unexplained, _ in left), default=math.inf)
    enough = max(2 * least, _SAME * error)
    cause = next((cause for unexplained, cause in left if unexplained <= enough), None)
    return cause if least < _UNEXPLAINED * error else None


def _scale(tested: Tensors, expected: Tensors) -> str | None:
    """The cause where all gradients are the same multiple of the expected ones."""
    names = tested.keys() & expected.keys()
    product = sum(float((in_double(tested[n]) * in_double(expected[n])).sum()) for n in names)
    square = sum(float(in_double(expected[n]).square().sum()) for n in names)
    if square == 0 or product == 0:
        return None
    factor = product / square
    multiple = scaled(expected, factor)
    error = measure_errors(tested, expected).total
    if measure_errors(tested, multiple).total * abs(factor) >= _UNEXPLAINED * error:
        return None
    return f"all gradients are {factor:.6g} times what they should be: is the loss scaled?"


def explain_batchnorm(model: nn.Module | None) -> str | None:
    """Return the cause where the model normalises over the batch that one process sees."""
    if model is None or not any(isinstance(one, _BATCHNORM_LAYERS) for one in model.modules()):
        return None
    return (
        "BatchNorm: each rank, micro-batch or chunk is normalised by its own statistics, which is "
        "a different computation; use SyncBatchNorm or GroupNorm"
    )
