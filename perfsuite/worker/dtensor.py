"""DTensors without their import, which takes most of a second; who has one has loaded it."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_T = TypeVar("_T", bound=Tensor)


def is_dtensor(tensor: Tensor | None) -> "TypeGuard[DTensor]":
    """Whether a tensor is distributed over a mesh."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory; a plain tensor itself."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def by_mesh(tensors: Iterable[_T]) -> list[list[_T]]:
    """The DTensors of each mesh, and the plain tensors: foreach kernels take no two kinds."""
    groups: dict[Any, list[_T]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device_mesh if is_dtensor(tensor) else None, []).append(tensor)
    return [*groups.values()]
