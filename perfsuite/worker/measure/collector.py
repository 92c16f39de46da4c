"""Python's collector: put off while rounds are timed, but what the code itself asks for costs all.

What lives on is frozen meanwhile: then collecting the garbage of a round takes a millisecond
instead of a hundred. A collection that the code asks for looks at all objects, as without a freeze.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_num_frozen, _is_off = 0, False  # objects that this module froze, and whether it switched it off


def freeze_loaded() -> None:
    """Freeze what the process holds: a collection that walks it takes 0.2 s, and copies it."""
    global _num_frozen
    gc.freeze()
    _num_frozen = gc.get_freeze_count()


def is_frozen_by_user() -> bool:
    """Whether the code has frozen objects, which it has no collection look at."""
    return gc.get_freeze_count() > _num_frozen


def collector_state() -> list[int]:
    """Return how the code has set the collector: two that differ cost different times."""
    return [gc.isenabled(), *gc.get_threshold(), is_frozen_by_user(), len(gc.callbacks)]


@contextmanager
def whole_heap() -> Iterator[None]:
    """Have each full collection in the block look at what is frozen, too."""
    gc.callbacks.append(_thaw)
    try:
        yield
    finally:
        with suppress(ValueError):  # the code may have emptied the list
            gc.callbacks.remove(_thaw)


def _thaw(phase: str, info: dict[str, int]) -> None:
    if info["generation"] == 2:  # the oldest, so all are collected
        (gc.unfreeze if phase == "start" else freeze_loaded)()


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
    was_frozen, _is_off = gc.get_freeze_count() > 0, gc.isenabled()
    gc.disable()
    gc.collect()
    if not is_frozen_by_user():  # what it has not frozen, its own collections look at
        freeze_loaded()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if _is_off:
            gc.enable()
        _is_off = False


def _be_as_set() -> None:
    if not is_frozen_by_user():
        gc.unfreeze()
    if _is_off:
        gc.enable()


# A loader worker is a fork that collects by itself, and looks at all objects, as it does alone.
os.register_at_fork(after_in_child=_be_as_set)
