"""A digest of weights: two numbers of each parameter, which two trees may compare without them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from perfsuite.records.cell import TensorDigest


@torch.no_grad()
def digest_weights(parameters: Iterable[Tensor]) -> tuple[TensorDigest, ...]:
    """Return the digest of each parameter, of a DTensor of this rank's part; waits for the device.

    Equal weights have equal digests, bit for bit: the order of a sum depends on shapes alone.
    """
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in parameters]
    parts = [torch.view_as_real(one) if one.is_complex() else one for one in parts]
    # A norm in float64 needs no copy of the tensor in float64, as its squares would.
    sums = [
        (one.sum(dtype=torch.float64), torch.linalg.vector_norm(one, dtype=torch.float64) ** 2)
        for one in parts
    ]
    return tuple(
        TensorDigest(part.numel(), float(total), float(squares))
        for part, (total, squares) in zip(parts, sums, strict=True)
    )
