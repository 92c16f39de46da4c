"""Combine what the ranks recorded, when the run is over: whole tensors, and where ranks differ."""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from perfsuite.worker.equivalence.comparison import Discrepancy
from perfsuite.worker.equivalence.tensors import Quantity, Tensors, relative_error
from perfsuite.worker.equivalence.trace.trace import RankStep, RankTrace, Weights


def share_trace(trace: RankTrace, device: torch.device) -> RankTrace:
    """Return the trace with the whole tensors that no earlier rank has, and with differences.

    A collective over `device`; without torch.distributed the trace itself.
    """
    if not dist.is_initialized():
        return trace
    sharing = _Sharing(device)
    start = sharing.share_weights(trace.start, step=0)
    steps = [
        sharing.share_step(recorded, step) for step, recorded in enumerate(trace.steps, start=1)
    ]
    return dataclasses.replace(trace, start=start, steps=steps, differences=sharing.differences)


# The shape and dtype of a tensor.
_Layout = tuple[tuple[int, ...], torch.dtype]


class _Sharing:
    """Goes through a trace on all ranks at once; the first rank that has a tensor keeps it."""

    def __init__(self, device: torch.device) -> None:
        self.differences: list[Discrepancy] = []
        self._device = device
        self._rank = dist.get_rank()

    def share_step(self, recorded: RankStep, step: int) -> RankStep:
        before = recorded.before
        return dataclasses.replace(
            recorded,
            gradients=self._share(recorded.gradients, "gradient", step),
            before=None if before is None else self.share_weights(before, step - 1),
            after=self.share_weights(recorded.after, step),
            unstepped=self._share(recorded.unstepped, "buffer", step),
        )

    def share_weights(self, weights: Weights, step: int) -> Weights:
        return Weights(
            parameters=self._share(weights.parameters, "parameter", step),
            buffers=self._share(weights.buffers, "buffer", step),
        )

    def _share(self, tensors: Tensors, quantity: Quantity, step: int) -> Tensors:
        mine = {
            name: tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
            for name, tensor in tensors.items()
        }
        layouts: list[dict[str, _Layout]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(
            layouts, {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in mine.items()}
        )
        kept = {}
        for holders, names in _names_by_holders(layouts).items():
            if self._rank == holders[0]:
                kept.update({name: mine[name] for name in names})
            if len(holders) == 1:
                continue
            firsts = self._broadcast(
                [mine.get(name) for name in names],
                [layouts[holders[0]][name] for name in names],
                holders[0],
            )
            if self._rank in holders[1:]:
                for name, first in zip(names, firsts, strict=True):
                    self._compare(mine[name], first, quantity, name, step)
        return kept

    def _broadcast(
        self, tensors: Sequence[Tensor | None], layouts: Sequence[_Layout], source: int
    ) -> list[Tensor]:
        """The tensors of the source on every rank, sent as one message of bytes."""
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in layouts]
        if self._rank == source:
            message = torch.cat([_as_bytes(tensor) for tensor in tensors if tensor is not None])
        else:
            message = torch.empty(sum(sizes), dtype=torch.uint8)
        message = message.to(self._device)
        dist.broadcast(message, src=source)
        return [
            # Cloned, because a view of another dtype must begin at a multiple of its item size.
            part.clone().view(dtype).reshape(shape)
            for part, (shape, dtype) in zip(torch.split(message.cpu(), sizes), layouts, strict=True)
        ]

    def _compare(
        self, mine: Tensor, first: Tensor, quantity: Quantity, name: str, step: int
    ) -> None:
        if mine.shape == first.shape and torch.equal(_as_bytes(mine), _as_bytes(first)):
            return
        error = relative_error(mine, first)
        self.differences.append(
            Discrepancy(quantity, step, error, 0.0, "on all ranks", name, self._rank)
        )


def _names_by_holders(layouts: Sequence[dict[str, _Layout]]) -> dict[tuple[int, ...], list[str]]:
    """The names of all tensors by the ranks that hold them, in the same order on every rank."""
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in dict.fromkeys(itertools.chain.from_iterable(layouts)):
        groups[tuple(rank for rank, names in enumerate(layouts) if name in names)].append(name)
    return groups


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
