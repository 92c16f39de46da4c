"""The average of the gradients of several ranks, rounded as DistributedDataParallel rounds it.

Computed in one process from the gradients of each shard. Must not know torch.distributed, nor where
the gradients came from. What PowerSGD makes of them, remembering earlier steps, is in `powersgd`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perfsuite.worker.equivalence.tensors import Tensors

# What a rank adds to the sum, which is in the share's dtype. Dividing before keeps the sum from
# overflowing. The reducer multiplies dense gradients while it copies them into its bucket (torch's
# reducer.cpp, mark_variable_ready_dense); the hooks divide the bucket (default_hooks.py), and so
# does PowerSGD's in a step that it does not compress.
_SHARES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "none": lambda gradient, num_shards: gradient * (1 / num_shards),
    "fp16": lambda gradient, num_shards: gradient.to(torch.float16) / num_shards,
    "bf16": lambda gradient, num_shards: gradient.to(torch.bfloat16) / num_shards,
    "powersgd": lambda gradient, num_shards: gradient / num_shards,
}


@torch.no_grad()
def average(shards: Sequence[Tensors], comm_hook: str) -> Tensors:
    """Return the mean over the shards, summed in rank order in the dtype that the hook sends.

    The bits are those of two ranks on a CPU. More ranks add in an order that depends on the backend
    and on a gradient's place in its bucket.

    Args:
        shards: The gradients of each rank by parameter name, a parameter without one left out.
        comm_hook: "none", "fp16", "bf16", or "powersgd" for a step that it does not compress.

    Returns:
        A gradient, in its own dtype, for each parameter that has one in any shard; where a shard
        has none it counts as zero.
    """
    share = _SHARES[comm_hook]
    totals: Tensors = {}
    dtypes: dict[str, torch.dtype] = {}
    for shard in shards:
        for name, gradient in shard.items():
            part = share(gradient, len(shards))
            if part.is_sparse:
                part = part.coalesce()  # as each rank does before it sends
            totals[name] = totals[name] + part if name in totals else part
            dtypes[name] = gradient.dtype
    return {name: total.to(dtypes[name]) for name, total in totals.items()}
