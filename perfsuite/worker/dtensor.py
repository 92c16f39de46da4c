"""DTensors without their import, which takes most of a second; who has one has loaded it."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: Tensor | None) -> "TypeGuard[DTensor]":
    """Whether a tensor is distributed over a mesh."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory; a plain tensor itself."""
    return tensor.to_local() if is_dtensor(tensor) else tensor
