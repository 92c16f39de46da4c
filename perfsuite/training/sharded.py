"""The part of a tensor that lives on this rank.

Must not know which mode split it.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory; a plain tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
