"""Keeping Python's garbage collector out of what is measured. Must not know what that is."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect all garbage, then run the block without any that nobody asks for.

    In the block `gc.collect()` costs a millisecond and not a hundred, because what was alive
    before it, torch's modules above all, is set aside.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
