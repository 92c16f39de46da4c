"""A digest of weights: two numbers of each parameter, which two trees may compare without them."""

from collections.abc import Iterable, Sequence

import torch
from msgspec.structs import astuple
from torch import Tensor, nn
from torch.optim import Optimizer

from perfsuite.records.cell import TensorDigest
from perfsuite.worker.dtensor import is_dtensor, local_tensor
from perfsuite.worker.measure.clock import living_objects

# Steps that are told; training multiplies a difference in rounding.
_MOST_STEPS = 3
_LEAST_SHARE = 1e-10


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


def modules_with_buffers(model: nn.Module | None) -> list[nn.Module]:
    """Return the modules of a model that hold buffers; of all that live, where it is None."""
    modules = living_objects() if model is None else model.modules()
    found = (one for one in modules if issubclass(type(one), nn.Module))
    return [one for one in found if vars(one).get("_buffers")]


def digest_buffers(modules: Iterable[nn.Module]) -> tuple[TensorDigest, ...]:
    """Return the digests of the modules' own buffers, without those that have no sum."""
    # A class of the user's may call something else its `buffers`; a fake one has no numbers.
    buffers = {id(one): one for part in modules for one in part._buffers.values()}
    plain = (one for one in buffers.values() if type(one) is Tensor or is_dtensor(one))
    real = (one for one in plain if not one.is_meta)
    floats = (one for one in real if one.is_floating_point() and one.element_size() > 1)
    return digest_weights(one for one in floats if one.layout is torch.strided)


def moved_buffers(digests: Sequence[tuple[TensorDigest, ...]]) -> tuple[TensorDigest, ...]:
    """Return the last digests of those that training moves, in an order of their own.

    A constant that becomes a buffer changes nothing, and the mean of what has none is rounding.
    """
    moved = [new for old, new in zip(*digests, strict=False) if new != old]
    least = _LEAST_SHARE * max((one.squares for one in moved), default=0.0)
    return tuple(sorted((one for one in moved if not one.squares < least), key=astuple))


class WeightDigests:
    """Those of all optimizers' weights, after each of a loop's first steps and after its last."""

    def __init__(self, most_steps: int) -> None:
        self.by_step: dict[int, tuple[TensorDigest, ...]] = {}
        self._num_left = min(_MOST_STEPS, most_steps)
        self._optimizers: dict[int, Optimizer] = {}

    def note_update(self, optimizer: Optimizer) -> None:
        """Know from now on what this optimizer updates."""
        if self._num_left > 0:
            self._optimizers[id(optimizer)] = optimizer

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
        self.by_step[step] = digest_weights(weights.values())
