"""SIGTERM as an exception, so that a CI that cancels a gate leaves no tree and no launch behind.

Must not know what is cleaned up.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# What a shell reports of a process that SIGTERM ended: 128 + 15.
_EXIT_TERMINATED = 143


@contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as `sys.exit` would; a handler that somebody has set stays."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_EXIT_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
