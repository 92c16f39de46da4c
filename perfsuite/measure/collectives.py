"""Which operators communicate, and how much. Must not know who asks.

The names are those of `torch.distributed` as its operators reach a dispatch mode: `c10d` of the
process groups (`dist.all_reduce`, DDP, FSDP2), `_c10d_functional` and `_dtensor` of DTensor.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from perfsuite.measure.tensors import tensors_in

_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_dtensor"})
# What only waits, checks or wraps, and moves no data of the program.
_MOVE_NOTHING = frozenset(
    {
        "_wrap_tensor_autograd",
        "barrier",
        "check_for_nan",
        "monitored_barrier_",
        "wait_tensor",
        "wait_tensors",
    }
)
_POINT_TO_POINT = frozenset(
    {"batch_p2p_ops", "irecv", "isend", "recv_", "recv_any_source_", "send"}
)

# gloo's threads let go of a collective's tensors some microseconds after its end. Without a pause
# 1 to 15 % of the iterations of an FSDP2 model had a larger peak; with 0.2 ms none of 400 had, with
# other processes on every core too.
_SETTLE_S = 0.001


def is_communication(func: Any) -> bool:
    """Return whether an operator moves data between ranks: a collective, or point to point."""
    return _is_of_torch_distributed(func) and _name(func) not in _MOVE_NOTHING


def communicated_bytes(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the size of a communication: the larger of what the rank gives and what it gets.

    This is the size that nccl-tests reports: of an all_gather the gathered tensor, of
    a reduce_scatter the one that is scattered.
    """
    # What is given and what is gotten are different arguments, or an argument and the result; one
    # that is reduced in place is both. Each may be a list of tensors, or a list of such lists.
    sides = (*args, *kwargs.values(), result)
    return max(sum(tensor.nbytes for tensor in tensors_in(side)) for side in sides)


def settle(func: Any, result: Any) -> None:
    """Return when the collective that `func` began or waited for is over and done with.

    gloo's threads run the callbacks of a collective that is not waited for, out of sight of
    a dispatch mode, and they hold its tensors for a moment after it. Point-to-point communication
    is left alone: two ranks that both receive first and send then would wait for each other.
    """
    if not _is_of_torch_distributed(func) or _name(func) in _POINT_TO_POINT:
        return
    for part in result if isinstance(result, tuple) else ():
        if isinstance(part, torch.ScriptObject):
            part.wait()  # type: ignore[attr-defined]  # a c10d Work
    time.sleep(_SETTLE_S)


def _is_of_torch_distributed(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func.namespace in _NAMESPACES


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__)
