"""Peak memory of one iteration, and what its forward pass keeps for its backward pass.

On a CPU torch counts no memory, so the bytes of all live storages are followed instead; the
temporary memory inside kernels is not seen there.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from perfsuite.ranks.messages import PeakMemory
from perfsuite.records.stages import Stage, untimed
from perfsuite.worker.measure.clock import collector_off, living_objects
from perfsuite.worker.measure.device import is_accelerator, memory_stats, synchronize
from perfsuite.worker.measure.dispatch import StepMode, tensors_in
from perfsuite.worker.measure.iterations import Iterations

_Found = TypeVar("_Found")
_SCALAR_BYTES = 16
Storages = WeakValueDictionary[int, torch.UntypedStorage]


def measure_peak(
    held: Iterator[Tensor], device: torch.device, *, frees_late: bool = False
) -> Iterations[PeakMemory | None]:
    """Return the peak memory of one iteration on this rank; every rank must run it.

    None where the allocator of an accelerator counts none. `saved_activation_bytes` is the memory
    in use at the start of a backward pass less that at the start of its (first) forward pass; the
    largest of all micro-batches (decision 0004).

    `held` are the tensors alive before the iteration: parameters, buffers, gradients, optimizer
    state. An iterator, since a list would keep alive what the iteration frees. `frees_late` says
    that another stream may use memory that was given back.
    """
    if is_accelerator(device):
        return (yield from _measure_allocator(device, "allocated" if frees_late else "requested"))
    tracker = LiveStorage(held)
    saved = _SavedBytes(lambda: tracker.made_bytes, tracker.stage)
    # The collector would free reference cycles at any time.
    with collector_off(), torch.compiler.set_stance("force_eager"), tracker:
        yield saved.stage
    peak, kept = tracker.peak_bytes, saved.most_bytes
    return PeakMemory(metric="live_storage_peak", peak_bytes=peak, saved_activation_bytes=kept)


def with_kept_bytes(
    asked: Iterations[_Found], made: Mapping[int, torch.UntypedStorage]
) -> Iterations[tuple[_Found, int]]:
    """Return what the iteration finds, and how many more bytes of tensors live after it.

    `made` are storages of an earlier iteration. Those that outlive this one, and that no tensor of
    Python's has, are a graph's, which a loss in a list keeps for a backward pass that never comes.
    """
    before = _live_bytes()
    found = yield from asked
    after = _live_bytes()
    graphs = {}
    for storage in [*made.values()]:
        with suppress(RuntimeError):  # of a class of the user's
            graphs[storage.data_ptr()] = storage.nbytes()
    hidden = (size for place, size in graphs.items() if place and place not in after)
    more = sum(size for size in hidden if size > _SCALAR_BYTES)
    return found, sum(after.values()) - sum(before.values()) + more


def storages_in(values: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of the tensors in nested values that have one."""
    for tensor in tensors_in(values):
        with suppress(RuntimeError):  # a class of the user's may have none
            yield tensor.untyped_storage()


def _live_bytes() -> dict[int, int]:
    """Return the sizes of all storages that tensors of Python's have, by their addresses."""
    gc.collect()
    sizes: dict[int, int] = {}
    for one in living_objects():
        if issubclass(type(one), Tensor):
            # A sparse, fake or lazy one has no storage, and a class of the user's may refuse.
            refusals = RuntimeError, ValueError, TypeError, AttributeError
            with suppress(*refusals), torch._C.DisableTorchFunctionSubclass():
                storage = one.untyped_storage()
                # Scalars are losses. Batches of a loader, shared or pinned, come as they come.
                is_batch = one.device.type == "cpu" and (storage.is_shared() or one.is_pinned())
                if storage.nbytes() > _SCALAR_BYTES and not is_batch:
                    sizes[storage.data_ptr()] = storage.nbytes()
    sizes.pop(0, None)
    return sizes


def _measure_allocator(device: torch.device, counted: str) -> Iterations[PeakMemory | None]:
    """Read what was requested; the blocks that are allocated for it depend on what was freed.

    What another stream may use is requested until the allocator sees that this one is done, as
    chance has it, and allocated only until it is given back.
    """
    if not memory_stats(device):
        yield untimed
        return None

    def read(stats: Mapping[str, int], when: str) -> int:
        # CUDA's own allocator counts nothing that is requested.
        return stats.get(f"{counted}_bytes.all.{when}") or stats[f"allocated_bytes.all.{when}"]

    saved = _SavedBytes(lambda: read(memory_stats(device), "current"), untimed)
    with collector_off():
        synchronize(device)
        torch.get_device_module(device).reset_peak_memory_stats(device)
        yield saved.stage
        synchronize(device)
        stats = memory_stats(device)
    is_exact = counted == "requested" and stats.get("requested_bytes.all.peak")
    return PeakMemory(
        metric="requested_peak" if is_exact else "max_memory_allocated",
        peak_bytes=read(stats, "peak"),
        saved_activation_bytes=saved.most_bytes,
        reserved_bytes=stats["reserved_bytes.all.peak"],
    )


class _SavedBytes:
    """The most memory that a forward stage left in use when its backward stage was entered."""

    def __init__(self, read_bytes: Callable[[], int], stage: Stage) -> None:
        self.most_bytes: int | None = None
        self._read_bytes, self._stage = read_bytes, stage
        self._before_forward_bytes: int | None = None

    def stage(self, name: str) -> AbstractContextManager[None]:
        if name == "forward" and self._before_forward_bytes is None:
            self._before_forward_bytes = self._read_bytes()
        elif name == "backward" and self._before_forward_bytes is not None:
            saved_bytes = self._read_bytes() - self._before_forward_bytes
            self.most_bytes = max(saved_bytes, self.most_bytes or 0)
            self._before_forward_bytes = None
        return self._stage(name)


class LiveStorage(StepMode):  # type: ignore[no-untyped-call]
    """Follows the bytes of all live storages that operators in its `with` block use.

    It starts with the storages of `held`. A storage that an operator makes counts until it is
    freed; any other (of a loader's batch) from its first use. Views share a storage, counted once.
    Sizes are read after each operator, because FSDP2 frees by `storage.resize_(0)`, without one.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()
        # By id: torch keeps one Python object for a storage as long as the storage lives.
        self._alive: Storages = WeakValueDictionary()
        self._made: Storages = WeakValueDictionary()
        for tensor in tensors_in(*held):
            self._use(tensor, is_made_here=False)
        self.peak_bytes = self.current_bytes

    @property
    def current_bytes(self) -> int:
        """Bytes that are alive now."""
        return sum(storage.nbytes() for storage in self._alive.values())

    @property
    def made_bytes(self) -> int:
        """Bytes that are alive now and were made by an operator in the `with` block."""
        return sum(storage.nbytes() for storage in self._made.values())

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operator's result, and count the storages that it used and made."""
        for tensor in tensors_in(args, kwargs):
            self._use(tensor, is_made_here=False)
        result = self.run(func, args, kwargs)
        for tensor in tensors_in(result):
            self._use(tensor, is_made_here=True)
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        return result

    def _use(self, tensor: Tensor, *, is_made_here: bool) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in self._alive:
            self._alive[id(storage)] = storage
            if is_made_here:
                self._made[id(storage)] = storage
