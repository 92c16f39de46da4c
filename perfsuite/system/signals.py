"""Signals that end a session: as an exception, so that it cleans up, or held back meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

# A CI that cancels, and a terminal that is closed.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# A shell adds it to the number of the signal that ended a process.
_EXIT_SIGNALLED = 128


def shell_exit_code(number: int) -> int:
    """Return a shell's exit code for a process that signal `number` ended.

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

    `end` raises the exception, given the signal; by default one line and that of `sys.exit`.
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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT and `SIGNALS` back, and deliver the first of them afterwards.

    Their handlers are replaced. Blocking the signals would not suffice: another thread, such as
    one of a numeric library, takes them then, and Python still runs the handler in the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no handler here
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, *SIGNALS)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


@contextmanager
def ignores_ctrl_c() -> Iterator[None]:
    """Ignore SIGINT: a first one has begun the end that a second would cut off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
