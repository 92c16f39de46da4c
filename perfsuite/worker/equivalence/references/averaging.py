"""The mean of the gradients of several ranks, rounded as DistributedDataParallel rounds it.

One process computes it from the gradients of each shard, without torch.distributed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perfsuite.worker.equivalence.comparison import Tensors

# What a rank adds to the sum, in the dtype of the sum. Dividing first keeps the sum from
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

    Two ranks on a CPU compute the same bits. More ranks add in an order that depends on the backend
    and on a gradient's place in its bucket. A parameter without a gradient in a shard counts as
    zero there. "powersgd" is for a step that the hook does not compress.
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
