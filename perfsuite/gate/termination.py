"""Signals as exceptions, so that a gate that somebody cancels leaves no tree and no launch behind.

Must not know what is cleaned up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from perfsuite.interruptions import SIGNALS

# What a shell reports of a process that a signal ended.
_EXIT_SIGNALLED = 128


def shell_exit_code(number: int) -> int:
    """Return what a shell reports of a process that signal `number` ended.

    >>> shell_exit_code(signal.SIGTERM)
    143
    """
    return _EXIT_SIGNALLED + number


def _exit(number: int) -> NoReturn:
    # Not through sys.stderr: the signal may have come while that was writing.
    os.write(2, f"perfsuite: ended by {signal.Signals(number).name}\n".encode())
    sys.exit(shell_exit_code(number))


@contextmanager
def ends_on_signals(end: Callable[[int], NoReturn] = _exit) -> Iterator[None]:
    """Let each of `SIGNALS` end the block by an exception; a handler that is set stays.

    Args:
        end: Raises the exception, given the signal; by default one line and that of `sys.exit`.
    """
    is_main = threading.current_thread() is threading.main_thread()
    ours = [one for one in SIGNALS if is_main and signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, lambda number, _: end(number))
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
