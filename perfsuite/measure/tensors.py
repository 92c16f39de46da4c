"""The tensors in the arguments or results of an operator. Must not know which operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# The protocol of tensor subclasses is documented under this path although it has an underscore.
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield every plain dense tensor in the values, in order.

    Lists, tuples and dicts are searched; a sparse tensor gives its indices and values, and
    a tensor subclass such as DTensor the tensors that it wraps.
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
