"""A digest of weights: a few numbers of each parameter, which two trees compare without them."""

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from msgspec.structs import astuple, replace
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.records.cell import TensorDigest
from perfsuite.worker.dtensor import is_dtensor, local_tensor
from perfsuite.worker.measure.clock import living_objects

# Steps that are told; training multiplies a difference in rounding.
_MOST_STEPS = 3
_LEAST_SHARE = 1e-10
# Of the largest gradient, what rounding may make of one that is 0: 16 u, as for a loss.
_ROUNDED_SHARE = 2.0**-20
_MOST_AT_ONCE = 2**22  # elements of a gradient that are copied
# Elements of a mask or a table of integers, which take eight bytes each as float64.
_MOST_CONVERTED = 2**24


@torch.no_grad()
def digest_weights(parameters: Iterable[Tensor]) -> tuple[TensorDigest, ...]:
    """Return each parameter's digest, a DTensor's of this rank's part; waits for the device."""
    # Equal weights have equal digests, bit for bit: the order of a sum depends on shapes alone.
    parts = [local_tensor(one) for one in parameters]
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


class BufferDigests:
    """Those of the buffers of a model, or of all modules that live, after some steps."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[nn.Module]] = []
        self._by_step: dict[int, tuple[tuple[TensorDigest, ...], ...]] = {}  # floats, and integers

    def end_step(self, model: nn.Module | None, step: int) -> None:
        """Digest the buffers now; the first step tells whose."""
        if not self._by_step:
            found = living_objects() if model is None else model.modules()
            modules = (one for one in found if issubclass(type(one), nn.Module))
            self._modules = [weakref.ref(one) for one in modules if vars(one).get("_buffers")]
        living = [one for one in (known() for known in self._modules) if one is not None]
        self._by_step[step] = digest_buffers(living), digest_buffers(living, are_whole=True)

    def moved(self) -> dict[int, tuple[TensorDigest, ...]]:
        """Return the digests of buffers that training has moved since the first step, by step."""
        (_, first), *later = self._by_step.items() or [(0, ())]
        sizes = [*map(len, first)]
        shares = _LEAST_SHARE, 0.0
        return {
            step: tuple(itertools.chain(*map(_moved, first, kinds, shares)))
            for step, kinds in later
            if [*map(len, kinds)] == sizes
        }


def digest_buffers(
    modules: Iterable[nn.Module], *, are_whole: bool = False
) -> tuple[TensorDigest, ...]:
    """Return the digests of the modules' own buffers of floats, else of integers and flags."""
    # A class of the user's may call something else its `buffers`; a fake one has no numbers.
    buffers = {id(one): one for part in modules for one in part._buffers.values()}
    plain = (one for one in buffers.values() if type(one) is Tensor or is_dtensor(one))
    of_kind = (it for it in plain if (it.is_floating_point() or it.is_complex()) != are_whole)
    real = (one for one in of_kind if not (one.is_meta or one.is_quantized))
    strided = (local_tensor(one) for one in real if one.layout is torch.strided)
    return digest_weights(number for one in strided for number in _as_numbers(one))


def _as_numbers(buffer: Tensor) -> Iterator[Tensor]:
    """Yield a buffer without what is not finite, which would hide the rest of it."""
    if buffer.is_complex():
        buffer = torch.view_as_real(buffer)
    if not buffer.is_floating_point() or buffer.element_size() == 1:
        if buffer.numel() > _MOST_CONVERTED:
            return
        buffer = buffer.double()
    yield buffer.nan_to_num(0.0, 0.0, 0.0)


def _moved(
    before: Sequence[TensorDigest], after: Sequence[TensorDigest], share: float
) -> tuple[TensorDigest, ...]:
    """Return the digests that differ, in an order of their own.

    A constant that becomes a buffer changes nothing, and the mean of what has none is rounding.
    """
    moved = [new for old, new in zip(before, after, strict=True) if new != old]
    least = share * max((one.squares for one in moved), default=0.0)
    return tuple(sorted((one for one in moved if not one.squares < least), key=astuple))


class WeightDigests:
    """Those of all optimizers' weights, after each of a loop's first steps and after its last."""

    def __init__(self, most_steps: int) -> None:
        self.by_step: dict[int, tuple[TensorDigest, ...]] = {}
        self._num_left = min(_MOST_STEPS, most_steps)
        self._optimizers: dict[int, Optimizer] = {}
        self._moved_by_rounding: Counter[int] = Counter()  # by the id of the weight
        self._num_gradients: Counter[int] = Counter()

    def note_update(self, optimizer: Optimizer) -> None:
        """Know from now on what this optimizer updates, and what rounding may make of it."""
        if self._num_left > 0:
            self._optimizers[id(optimizer)] = optimizer
            self._moved_by_rounding.update(moved := _moved_by_rounding(optimizer))
            self._num_gradients.update(moved.keys())

    def end_step(self) -> None:
        """Digest the weights, if this is one of the first steps."""
        if self._num_left > 0:
            self._num_left -= 1
            self._digest(len(self.by_step) + 1)

    def end_loop(self, step: int) -> None:
        """Digest the weights after the last step; what was frozen meanwhile has no digest."""
        if self.by_step:
            self._digest(step)

    def _digest(self, step: int) -> None:
        groups = [group for one in self._optimizers.values() for group in one.param_groups]
        held = [weight for group in groups for weight in group["params"]]
        # A frozen one may be quantized, of a dtype or class that sums do not take.
        weights = {id(weight): weight for weight in held if weight.requires_grad}
        moved, counts = self._moved_by_rounding, self._num_gradients
        self.by_step[step] = tuple(
            replace(one, moved_by_rounding=float(moved[key]), num_gradients=counts[key])
            for key, one in zip(weights, digest_weights(weights.values()), strict=True)
        )


@torch.no_grad()
def _moved_by_rounding(optimizer: Optimizer) -> dict[int, float]:
    """Return what rounding may have moved each weight with a gradient by, summed over its elements.

    SGD moves in proportion to a gradient. Others divide by its size: near 0 they move a weight by
    the learning rate, in the direction that rounding has given to the gradient.
    """
    known: dict[int, tuple[float, Tensor]] = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                gradient = local_tensor(weight.grad)
                values = gradient.coalesce().values() if gradient.is_sparse else gradient
                if values.any():
                    known[id(weight)] = float(group.get("lr") or 0.0), values
    largest = nn.utils.get_total_norm([one for _, one in known.values()], math.inf)
    error = _ROUNDED_SHARE * float(largest)
    if isinstance(optimizer, torch.optim.SGD):
        return {key: rate * error * one.numel() for key, (rate, one) in known.items()}
    return {key: rate * _num_undirected(one, error) for key, (rate, one) in known.items()}


def _num_undirected(gradient: Tensor, error: float) -> float:
    """Return how many elements are no larger than the error; larger ones count as their noise."""
    count = squares = 0.0
    for part in torch.split(gradient.reshape(-1), _MOST_AT_ONCE):
        shares = torch.where(part == 0.0, 0.0, error / part.abs())
        count += float((shares >= 1.0).sum())
        squares += float(torch.where(shares < 1.0, shares, 0.0).square().sum(dtype=torch.float64))
    return count + math.sqrt(squares)
