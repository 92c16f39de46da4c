"""Seeing every operator of an iteration, its tensors, and whether and how much it communicates.

A dispatch mode sees the operators of `torch.distributed` in three namespaces: those of process
groups (`dist.all_reduce`, DDP, FSDP2) in `c10d`, DTensor's in `_c10d_functional` and `_dtensor`.
"""

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch documents what it has under this path although the module has an underscore.
from torch.utils import _python_dispatch

from perfsuite.ranks.messages import Watched


class StepMode(_python_dispatch.TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """Sees every operator that runs in its `with` block, on plain tensors, except in loading.

    - A subclass such as DTensor is unwrapped first: operators on its local tensors are seen.
    - Loading is left out because it would be seen only where no worker process does it.
    - Operators of other threads than this one and autograd's are not seen. So each collective is
      waited for at once, and the rest of a DDP communication hook runs in this thread.
    - A compiled model must run uncompiled: torch would compile what sees its operators, too.
    """

    # Without this, torch refuses to run flex_attention and other operators that take functions.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_loading = False
        self._communication_s, self._num_operators = 0.0, 0
        self.watched_s: Watched = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap what sees each operator in one more call, to keep its compiler out. A
        # check of a transformer took 5 % longer by that.
        return False

    @abstractmethod
    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `self.run(func, args, kwargs)`; every tensor in the arguments is a plain one."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operator's result, after a collective has ended."""
        began_s = time.perf_counter()
        result = func(*args, **kwargs)
        if await_collective(func, result):
            time.sleep(_SETTLE_S)
            self._communication_s += time.perf_counter() - began_s
        return result

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Enter a stage; the iteration is given this method as its `Stage`."""
        self._is_loading = name == "load"
        before_s, num_before = self._communication_s, self._num_operators
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._is_loading = False
            own_s, inside_s, num = self.watched_s.get(name, (0.0, 0.0, 0))
            communication_s = self._communication_s - before_s
            own_s += time.perf_counter() - began_s - communication_s
            num += self._num_operators - num_before
            self.watched_s[name] = own_s, inside_s + communication_s, num

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(map(_python_dispatch.is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if self._is_loading:
            return func(*args, **(kwargs or {}))
        self._num_operators += 1
        return self.observe(func, args, kwargs or {})


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield the plain dense tensors in nested values; of a sparse one or a subclass its parts."""
    for value in values:
        if isinstance(value, Tensor):
            yield from _plain_tensors(value)
        elif isinstance(value, list | tuple):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def _plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    if _python_dispatch.is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        yield from tensors_in(*(getattr(tensor, name) for name in names))
    elif tensor.layout is torch.sparse_coo:
        # indices() and values() refuse a gradient that is not coalesced yet.
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout is torch.strided:
        yield tensor


_NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")
# These only wait, check or wrap, and move no data of the program.
_MOVE_NOTHING = (
    *("_wrap_tensor_autograd", "barrier", "check_for_nan", "monitored_barrier_"),
    *("wait_tensor", "wait_tensors"),
)
_POINT_TO_POINT = ("batch_p2p_ops", "irecv", "isend", "recv_", "recv_any_source_", "send")

# gloo's threads release a collective's tensors some microseconds after its end. Without a pause
# 1 to 15 % of the iterations of an FSDP2 model had a larger peak; with 0.2 ms none of 400 had.
_SETTLE_S = 0.001


def is_communication(func: Any) -> bool:
    """Return whether an operator moves data between ranks: a collective, or point to point."""
    name = _name_in_torch_distributed(func)
    return name is not None and name not in _MOVE_NOTHING


def communicated_bytes(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the larger of what the rank sends and receives, the size that nccl-tests reports."""
    # The two are different arguments, or an argument and the result, or one that is reduced in
    # place. Each may be a list of tensors, or a list of such lists.
    sides = (*args, *kwargs.values(), result)
    return max(sum(tensor.nbytes for tensor in tensors_in(side)) for side in sides)


def await_collective(func: Any, result: Any) -> bool:
    """Return when the collective that `func` began or waited for has ended.

    Returns whether `func` is of torch.distributed at all. gloo's threads run the callbacks of a
    collective that is not waited for, unseen, and torch 2.14.1's all-reduce of sparse tensors may
    corrupt the heap. Point-to-point communication would deadlock, and is not waited for.
    """
    if (name := _name_in_torch_distributed(func)) is None or name in _POINT_TO_POINT:
        return name is not None
    for part in result if isinstance(result, tuple) else (result,):
        # Of a synchronous one NCCL has no Work, and the process that waits for none ends.
        work = dist.Work.unbox(part) if isinstance(part, torch.ScriptObject) else None
        if work is not None:
            work.wait()
    return True


# Modules between the code that begins a collective and the dispatch mode that sees it.
_BETWEEN = (
    *("torch._", "torch.autograd.", "torch.distributed._functional_collectives"),
    *("torch.distributed.c10d_logger", "torch.distributed.distributed_c10d"),
    *("typing_extensions", "warnings", "_py_warnings"),  # of what is deprecated
    *("torch.distributed.nn.", "perfsuite.worker.measure.", "perfsuite.worker.equivalence."),
)


def find_caller() -> str | None:
    """Return the module whose code began the present collective; None for torch's and ours."""
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_stack(None))
    module = next((one for one in modules if not one.startswith(_BETWEEN)), "perfsuite.")
    return None if module.startswith(("torch.", "perfsuite.")) else module


def _name_in_torch_distributed(func: Any) -> str | None:
    if isinstance(func, torch._ops.OpOverload) and func.namespace in _NAMESPACES:
        return str(func.overloadpacket.__name__)
    return None
