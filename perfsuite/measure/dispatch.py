"""What the counting and the memory measurement share: seeing every operator of an iteration.

Must not know what is done with an operator that was seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# torch documents TorchDispatchMode under this path although the module has an underscore.
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)


class StepMode(TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """Sees every operator that runs in its `with` block, on plain tensors, except in loading.

    - A tensor subclass such as DTensor goes first: what is seen are the operators, collectives
      included, on the local tensors that it turns into.
    - Loading is left out because it would be seen only where no worker process does it.
    - Operators of the calling thread and of autograd's threads are seen. What runs on a thread of
      the communication library, as a callback of a DDP communication hook may, is not.
    """

    # Without this, torch refuses to run flex_attention and other operators that take functions.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_loading = False

    @abstractmethod
    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `func(*args, **kwargs)`; every tensor in the arguments is a plain one."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Work in a stage; the iteration is handed this method."""
        self._is_loading = name == "load"
        try:
            yield
        finally:
            self._is_loading = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if self._is_loading:
            return func(*args, **(kwargs or {}))
        return self.observe(func, args, kwargs or {})


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield every plain dense tensor in arguments or results of an operator, in order.

    Lists, tuples and dicts are searched; a sparse tensor gives its indices and values, and
    a tensor subclass the tensors that it wraps.
    """
    for value in values:
        if isinstance(value, Tensor):
            yield from _plain_tensors(value)
        elif isinstance(value, list | tuple):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def _plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        yield from tensors_in(*(getattr(tensor, name) for name in names))
    elif tensor.layout is torch.sparse_coo:
        # indices() and values() refuse a gradient that has not been coalesced yet.
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout is torch.strided:
        yield tensor
