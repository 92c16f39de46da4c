"""The mean of the gradients of several ranks in one process, rounded as DDP and its hooks round it.

PowerSGD is of Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression", written anew
with the operators of torch's `powerSGD_hook` on its layout in memory, so all rounding is the same.

Shapes: N numbers of one bucket; the gradient of one parameter as a matrix of n rows and m columns,
(1, n, m), which p, (1, n, 1), times the transpose of q, (1, m, 1), approximates.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy
import torch
from torch import Tensor

from perfsuite.worker.equivalence.comparison import Tensors

# The defaults of powerSGD_hook.PowerSGDState. A matrix is compressed, to rank one, where that makes
# it less than half as large. A generator with this seed draws the seeds of the first q's.
_MIN_COMPRESSION_RATE = 2
_RANDOM_SEED = 0
_NUM_SEEDS = 1_000_000_000

# Reductions that are not compressed; equal to data_parallel._POWERSGD_START_ITER.
NUM_PLAIN_STEPS = 2

# What hooks that cast gradients send.
HOOK_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@torch.no_grad()
def average(shards: Sequence[Tensors], comm_hook: str) -> Tensors:
    """Return the mean over the shards, summed in rank order in the dtype that the hook sends.

    Two ranks on a CPU compute the same bits. More ranks add in an order that depends on the backend
    and on a gradient's place in its bucket. A parameter without a gradient in a shard counts as
    zero there. "powersgd" is for a step that the hook does not compress.
    """
    totals: Tensors = {}
    dtypes: dict[str, torch.dtype] = {}
    for shard in shards:
        for name, gradient in shard.items():
            # What a rank adds to the sum. Dividing first keeps it from overflowing. The reducer
            # multiplies dense gradients while it copies them (torch's reducer.cpp,
            # mark_variable_ready_dense); hooks divide the bucket (default_hooks.py), as PowerSGD's
            # does where it does not compress.
            if comm_hook == "none":
                part = gradient * (1 / len(shards))
            else:
                part = gradient.to(HOOK_DTYPES.get(comm_hook, gradient.dtype)) / len(shards)
            if part.is_sparse:
                part = part.coalesce()  # as each rank does before it sends
            totals[name] = totals[name] + part if name in totals else part
            dtypes[name] = gradient.dtype
    return {name: total.to(dtypes[name]) for name, total in totals.items()}


class _Bucket:
    """One rank's gradients of a few parameters, side by side in memory (N,) as DDP sends them.

    The other attributes are views of it: the gradients with the shapes and strides of their
    parameters; the large ones as matrices, (1, n, m), those of one shape one after the other, as
    the hook lays out their p's and q's; and the others, one-dimensional.
    """

    def __init__(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        self.memory = parameters[0].new_zeros(sum(sizes))
        self.gradients, self.uncompressed = list[Tensor](), list[Tensor]()
        matrices: dict[tuple[int, int], list[Tensor]] = {}
        parts = torch.split(self.memory, sizes)
        for parameter, gradient, part in zip(parameters, gradients, parts, strict=True):
            view = part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
            if gradient is not None:
                view.copy_(gradient)
            self.gradients.append(view)
            n = parameter.shape[0]
            m = parameter.numel() // n
            if (n + m) * _MIN_COMPRESSION_RATE < n * m:
                matrices.setdefault((n, m), []).append(part.view(1, n, m))
            else:
                self.uncompressed.append(part)
        self.compressed = [matrix for of_shape in matrices.values() for matrix in of_shape]


class PowerSGD:
    """Averages the gradients of `parameters`, by name, as DDP does under `powerSGD_hook`.

    Each rank adds to its gradients what compression lost of its earlier ones (error feedback), and
    the approximation starts from the last step's q (warm start). The hook also counts the
    difference of an uncompressed gradient from its mean as lost: sums, and rounding, grow.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], *, num_plain_steps: int = NUM_PLAIN_STEPS
    ) -> None:
        self._parameters, self._num_plain_steps = parameters, num_plain_steps
        self._random = numpy.random.RandomState(_RANDOM_SEED)
        self._lost: dict[int, list[Tensor]] = {}
        self._q: dict[int, Tensor] = {}

    @torch.no_grad()
    def average(self, shards: Sequence[Tensors], layout: Sequence[Sequence[str]]) -> Tensors:
        """Return the gradients that every rank holds after the reduction of one optimizer step.

        Two ranks on a CPU with as many threads compute the same bits. As under the hook, a
        compressed matrix that is zero on all ranks becomes NaN, in this step and all later ones.
        `layout` names the parameters of each bucket in order, the same in all compressed steps.
        """
        if self._num_plain_steps > 0:
            self._num_plain_steps -= 1
            return average(shards, "powersgd")
        reduced: Tensors = {}
        for index, names in enumerate(layout):
            parameters = [self._parameters[name] for name in names]
            buckets = [_Bucket(parameters, [shard.get(name) for name in names]) for shard in shards]
            self._reduce(index, buckets)
            reduced |= zip(names, buckets[0].gradients, strict=True)
        # They are compared with recorded ones, and computed on the model's device.
        devices = {name: gradient.device for shard in shards for name, gradient in shard.items()}
        return {name: one.to(devices[name]) for name, one in reduced.items() if name in devices}

    def _reduce(self, index: int, buckets: Sequence[_Bucket]) -> None:
        """Replace the gradients in each rank's bucket by their compressed mean."""
        if index in self._lost:
            for bucket, lost in zip(buckets, self._lost[index], strict=True):
                bucket.memory.add_(lost)
        whole = [bucket.memory.clone() for bucket in buckets]
        if index not in self._q:
            self._q[index] = self._draw_q(buckets[0])

        _approximate([bucket.compressed for bucket in buckets], self._q[index])
        for gradients in zip(*(bucket.uncompressed for bucket in buckets), strict=True):
            mean = reduce(torch.add, gradients) / len(gradients)
            for gradient in gradients:
                gradient.copy_(mean)

        pairs = zip(whole, buckets, strict=True)
        self._lost[index] = [own - bucket.memory for own, bucket in pairs]

    def _draw_q(self, bucket: _Bucket) -> Tensor:
        generator = torch.Generator().manual_seed(int(self._random.randint(_NUM_SEEDS)))
        q = bucket.memory.new_empty(sum(matrix.shape[2] for matrix in bucket.compressed))
        for column in _columns(q, bucket.compressed):
            column.copy_(torch.randn(column.shape, generator=generator, dtype=column.dtype))
        return q


def _approximate(matrices_of_ranks: Sequence[list[Tensor]], q: Tensor) -> None:
    """Replace the matrices by the product of p and q, and q by this step's: algorithm 1."""
    matrices = matrices_of_ranks[0]
    _normalize(_columns(q, matrices))
    p = reduce(torch.add, [_multiply(own, q) for own in matrices_of_ranks])
    transposed_of_ranks = [[matrix.mT for matrix in own] for own in matrices_of_ranks]
    _normalize(_columns(p, transposed_of_ranks[0]))
    total = reduce(torch.add, [_multiply(own, p) for own in transposed_of_ranks])
    q.copy_(total / len(matrices_of_ranks))
    for own in matrices_of_ranks:
        columns = zip(_columns(p, transposed_of_ranks[0]), _columns(q, matrices), strict=True)
        for matrix, (left, right) in zip(own, columns, strict=True):
            torch.bmm(left, right.mT, out=matrix)


def _multiply(matrices: Sequence[Tensor], vector: Tensor) -> Tensor:
    """Each matrix times its column of the vector, one product after the other."""
    products = vector.new_empty(sum(matrix.shape[1] for matrix in matrices))
    results = torch.split(products, [matrix.shape[1] for matrix in matrices])
    for matrix, column, result in zip(matrices, _columns(vector, matrices), results, strict=True):
        torch.bmm(matrix, column, out=result.view(1, -1, 1))
    return products


def _columns(vector: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Views of the vector as the columns, (1, m, 1), that the matrices can be multiplied with."""
    parts = torch.split(vector, [matrix.shape[2] for matrix in matrices])
    return [part.view(1, -1, 1) for part in parts]


def _normalize(columns: Sequence[Tensor]) -> None:
    for column in columns:  # which orthogonalizes a matrix of one column
        column /= torch.linalg.vector_norm(column, dim=1, keepdim=True)
