"""Signals as exceptions, so that a gate that somebody cancels leaves no tree and no launch behind.

Must not know what is cleaned up.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A CI that cancels, and a terminal that is closed.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# What a shell reports of a process that a signal ended.
_EXIT_SIGNALLED = 128


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """Let each of `SIGNALS` end the block as `sys.exit` would; a handler that is set stays."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [one for one in SIGNALS if is_main and signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, lambda number, _: sys.exit(_EXIT_SIGNALLED + number))
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
