"""Make what the ranks recorded whole, when the run is over, and keep what they share once."""

import dataclasses
import hashlib

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from perfsuite.worker.equivalence.tensors import Tensors
from perfsuite.worker.equivalence.trace.trace import RankStep, RankTrace, Weights


def share_trace(trace: RankTrace) -> RankTrace:
    """Return the trace with whole tensors, less those of which the first rank has the same bits.

    A collective; without torch.distributed the trace itself.
    """
    if not dist.is_initialized():
        return trace
    start, steps = _share_weights(trace.start), [_share_step(step) for step in trace.steps]
    return dataclasses.replace(trace, start=start, steps=steps)


def _share_step(step: RankStep) -> RankStep:
    return dataclasses.replace(
        step,
        gradients=_share(step.gradients),
        before=None if step.before is None else _share_weights(step.before),
        after=_share_weights(step.after),
        unstepped=_share(step.unstepped),
    )


def _share_weights(weights: Weights) -> Weights:
    return Weights(parameters=_share(weights.parameters), buffers=_share(weights.buffers))


def _share(tensors: Tensors) -> Tensors:
    whole = {
        name: tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }
    digests = {name: _digest(tensor) for name, tensor in whole.items()}
    by_rank: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_rank, digests)
    firsts: dict[str, str] = {}
    for earlier in reversed(by_rank[: dist.get_rank()]):
        firsts |= earlier
    return {name: one for name, one in whole.items() if firsts.get(name) != digests[name]}


def _digest(tensor: Tensor) -> str:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {hashlib.sha256(content).hexdigest()}"
