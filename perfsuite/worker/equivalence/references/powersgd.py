"""The average of the gradients of several ranks under PowerSGD, step after step, in one process.

Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression", with the choices of torch's
`powerSGD_hook`. Written anew, because ranks prove nothing when they are held to their own code; but
with its operators on its layout in memory, so that every rounding is the same. Must not know
torch.distributed, nor where the gradients came from.

Shapes: N numbers of one bucket; n rows and m columns of one parameter's gradient as a matrix,
(1, n, m), approximated by p, (1, n, 1), times q transposed, q being (1, m, 1). The leading 1 is a
batch of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.equivalence.tensors import Tensors

# The defaults of powerSGD_hook.PowerSGDState: a matrix is compressed, to rank one, where that makes
# it less than half as large; what seeds the generator of seeds, and the seeds of the first q's.
_MIN_COMPRESSION_RATE = 2
_RANDOM_SEED = 0
_NUM_SEEDS = 1_000_000_000

# As many as replicas._POWERSGD_START_ITER.
_NUM_PLAIN_STEPS = 2


class PowerSGD:
    """Averages gradients as DDP does under `powerSGD_hook`, with the memory that the ranks keep.

    Each rank adds to its gradients what compression lost of its earlier ones (error feedback), and
    the approximation starts from the last step's q (warm start). The hook also counts as lost how
    an uncompressed gradient differs from its mean. So what is summed grows with every step, and so
    does the rounding by which more than two ranks differ from the sums in rank order.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], *, num_plain_steps: int = _NUM_PLAIN_STEPS
    ) -> None:
        """Start with nothing remembered.

        Args:
            parameters: The model's by name, for their shapes, strides and dtypes.
            num_plain_steps: Calls of `average` before it compresses. The hook counts reductions:
                also those of steps that a scaler skipped, and the one from which DDP learns a
                static graph under accumulation.
        """
        self._parameters = parameters
        self._num_plain_steps = num_plain_steps
        self._random = numpy.random.RandomState(_RANDOM_SEED)
        self._lost: dict[int, list[Tensor]] = {}
        self._q: dict[int, Tensor] = {}

    @torch.no_grad()
    def average(self, shards: Sequence[Tensors], layout: Sequence[Sequence[str]]) -> Tensors:
        """Return what every rank holds after the reduction of one optimizer step.

        The bits are those of two ranks on a CPU that compute with as many threads.

        Args:
            shards: The gradients of each rank by parameter name, a parameter without one left out.
            layout: The names of the parameters in each bucket, in the order in which the buckets
                are reduced; unused in a plain step, and the same in all others.

        Returns:
            A gradient for each parameter that has one in any shard. As under the hook it is NaN, in
            this step and all later ones, for a compressed matrix that is zero on all ranks.
        """
        if self._num_plain_steps > 0:
            self._num_plain_steps -= 1
            return average(shards, "powersgd")
        reduced: Tensors = {}
        for index, names in enumerate(layout):
            parameters = [self._parameters[name] for name in names]
            buckets = [
                _fill_bucket(parameters, [shard.get(name) for name in names]) for shard in shards
            ]
            self._reduce(index, buckets)
            reduced |= zip(names, buckets[0].gradients, strict=True)
        present = {name for shard in shards for name in shard}
        return {name: gradient for name, gradient in reduced.items() if name in present}

    def _reduce(self, index: int, buckets: Sequence[_Bucket]) -> None:
        """Replace the gradients in each rank's bucket by what the ranks agree on."""
        if index in self._lost:
            for bucket, lost in zip(buckets, self._lost[index], strict=True):
                bucket.memory.add_(lost)
        wanted = [bucket.memory.clone() for bucket in buckets]
        if index not in self._q:
            self._q[index] = self._draw_q(buckets[0])

        _approximate([bucket.compressed for bucket in buckets], self._q[index])
        for gradients in zip(*(bucket.uncompressed for bucket in buckets), strict=True):
            mean = _sum(gradients) / len(gradients)
            for gradient in gradients:
                gradient.copy_(mean)

        self._lost[index] = [
            whole - bucket.memory for whole, bucket in zip(wanted, buckets, strict=True)
        ]

    def _draw_q(self, bucket: _Bucket) -> Tensor:
        seed = int(self._random.randint(_NUM_SEEDS))
        generator = torch.Generator().manual_seed(seed)
        q = bucket.memory.new_empty(sum(matrix.shape[2] for matrix in bucket.compressed))
        for column in _columns(q, bucket.compressed):
            column.copy_(torch.randn(column.shape, generator=generator, dtype=column.dtype))
        return q


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    """One rank's gradients of a few parameters, side by side as DDP sends them.

    Attributes:
        memory: All of them, (N,); the others are views of it.
        gradients: By parameter, with its shape and strides.
        compressed: The large ones as matrices, (1, n, m), whatever strides; those of one shape one
            after the other, as the hook lays out their p's and q's.
        uncompressed: The others, each one-dimensional.
    """

    memory: Tensor
    gradients: list[Tensor]
    compressed: list[Tensor]
    uncompressed: list[Tensor]


def _fill_bucket(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> _Bucket:
    sizes = [parameter.numel() for parameter in parameters]
    memory = parameters[0].new_zeros(sum(sizes))
    bucket = _Bucket(memory=memory, gradients=[], compressed=[], uncompressed=[])
    for parameter, gradient, part in zip(
        parameters, gradients, torch.split(memory, sizes), strict=True
    ):
        view = part.as_strided(parameter.shape, parameter.stride(), part.storage_offset())
        if gradient is not None:
            view.copy_(gradient)
        bucket.gradients.append(view)
        n = parameter.shape[0]
        m = parameter.numel() // n
        if (n + m) * _MIN_COMPRESSION_RATE < n * m:
            bucket.compressed.append(part.view(1, n, m))
        else:
            bucket.uncompressed.append(part)
    shapes = [matrix.shape for matrix in bucket.compressed]
    bucket.compressed.sort(key=lambda matrix: shapes.index(matrix.shape))
    return bucket


def _approximate(matrices_of_ranks: Sequence[list[Tensor]], q: Tensor) -> None:
    """Replace the matrices of all ranks by the product of p and q: algorithm 1 of the paper.

    Args:
        matrices_of_ranks: The same matrices of each rank, (1, n, m).
        q: Of the last step, one column after the other; becomes this step's.
    """
    matrices = matrices_of_ranks[0]
    _normalize(_columns(q, matrices))
    p = _sum([_multiply(own, q) for own in matrices_of_ranks])
    transposed_of_ranks = [[matrix.mT for matrix in own] for own in matrices_of_ranks]
    _normalize(_columns(p, transposed_of_ranks[0]))
    q.copy_(_sum([_multiply(own, p) for own in transposed_of_ranks]) / len(matrices_of_ranks))
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
    # To orthogonalize a matrix of one column is no more than this.
    for column in columns:
        column /= torch.linalg.vector_norm(column, dim=1, keepdim=True)


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total
