"""What timing needs: a clock that waits for the device, and Python's collector off meanwhile.

What lives on is frozen, so garbage takes 1 ms and not 100; what code asks for looks at it, too.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType
from typing import Any

import torch
import torch.distributed as dist

from perfsuite.errors import WorkloadError
from perfsuite.worker.measure.device import synchronize

# Whether this module switched the collector off; whether code thawed what it froze.
_is_off, _is_thawed = False, False
# What `get_objects` has unless frozen, before and since this module froze: counting takes 30 ms.
_before, _since = None, list[Any]()
_LOOKS = {"get_objects": gc.get_objects, "get_referrers": gc.get_referrers}


class DeviceClock:
    """Seconds of the host's clock `read`, when the device has done all its work, synchronised."""

    def __init__(self, device: torch.device, read: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._read = device, read
        self._held_s = 0.0

    def __call__(self) -> float:
        """Return the seconds until now, without those while the clock was held."""
        synchronize(self._device)
        return self._read() - self._held_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no time pass on this clock in the block."""
        before_s = self()
        yield
        self._held_s += self() - before_s


def require_clock() -> None:
    """Raise a WorkloadError where code under test has replaced the clock that times it."""
    clock: Any = time.perf_counter
    if not isinstance(clock, BuiltinFunctionType) or clock.__name__ != "perf_counter":
        found = f"time.perf_counter, which times each step, is {clock!r} here"
        raise WorkloadError(f"{found}; let nothing replace it before the first step")


def start_together(group: dist.ProcessGroup | None = None) -> None:
    """Return when all ranks of the process group, if there is one, have called this."""
    if dist.is_initialized():
        dist.barrier(group)


def largest_over_ranks(
    values: Sequence[float], device: torch.device, group: dist.ProcessGroup | None = None
) -> list[float]:
    """Return the largest of each value over all ranks of the process group, if there is one."""
    if not dist.is_initialized():
        return list(values)
    largest = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return largest.tolist()


def freeze_loaded() -> None:
    """Freeze what the process holds: a collection that walks it takes 0.2 s, and copies it."""
    global _before, _since
    gc.freeze()
    _before, _since = _since, []


def _thaw() -> None:
    global _before
    gc.unfreeze()
    _before = None


def user_has_frozen() -> bool:
    """Whether the code has frozen objects, which it has no collection look at."""
    return _what_is_frozen()[1]


def _what_is_frozen() -> tuple[bool, bool]:
    """Return whether anything is, and by the code."""
    if _before is None:
        return (gc.get_freeze_count() > 0,) * 2
    walked = {*map(id, _LOOKS["get_objects"]())}
    is_frozen = id(_before) not in walked
    return is_frozen, is_frozen and id(_since) not in walked


def collector_state() -> list[int]:
    """Return how the code has set the collector: two that differ cost different times."""
    return [gc.isenabled(), *gc.get_threshold(), user_has_frozen(), len(gc.callbacks)]


def living_objects() -> list[Any]:
    """Return all objects that Python's collector knows, frozen ones too."""
    is_frozen, is_users = _what_is_frozen()
    gc.unfreeze()
    found = _LOOKS["get_objects"]()
    if is_frozen:
        (gc.freeze if is_users else freeze_loaded)()
    return found


@contextmanager
def whole_heap() -> Iterator[None]:
    """Have each full collection, and what else looks at all objects, look at frozen ones too."""
    global _is_thawed
    if _is_thawed:
        freeze_loaded()
        _is_thawed = False
    gc.callbacks.append(_watch)
    vars(gc).update({name: partial(_look, look) for name, look in _LOOKS.items()})
    try:
        yield
    finally:
        vars(gc).update(_LOOKS)
        gc.callbacks[:] = [one for one in gc.callbacks if one is not _watch]  # if it still is


def _watch(phase: str, info: dict[str, int]) -> None:
    if info["generation"] == 2:  # the oldest, so all are collected
        (_thaw if phase == "start" else freeze_loaded)()


def _look(look: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    global _is_thawed
    _is_thawed = True  # until the next block: garbage must not be frozen before it is collected
    _thaw()
    return look(*arguments, **options)


def collection_s(clock: Callable[[], float] = time.perf_counter) -> float:
    """Collect all garbage, and return the seconds that this took because there was some."""
    began_s = clock()
    found = gc.collect()
    with_garbage_s = clock() - began_s
    if not found:
        return 0.0
    began_s = clock()
    gc.collect()
    return max(0.0, with_garbage_s - (clock() - began_s))


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect all garbage, then run the block without automatic garbage collection."""
    global _is_off
    (was_frozen, is_users), _is_off = _what_is_frozen(), gc.isenabled()
    gc.disable()
    gc.collect()
    if not is_users:  # what the code has not frozen, its own collections look at
        freeze_loaded()
    try:
        yield
    finally:
        if not was_frozen:
            _thaw()
        if _is_off:
            gc.enable()
        _is_off = False


def _be_as_set() -> None:
    if not user_has_frozen():
        _thaw()
    if _is_off:
        gc.enable()


# A loader worker is a fork that collects by itself, and looks at all objects, as it does alone.
os.register_at_fork(after_in_child=_be_as_set)
