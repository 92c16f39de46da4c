"""Signals that end a session: as an exception, so that it cleans up, and held back meanwhile.

Must not know what is done, or cleaned up.
"""

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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT and what ends a session back, and deliver the first of them afterwards.

    Their handlers are replaced. To block the signals would not do: another thread, such as one of
    a numeric library, takes them then, and Python runs the handler in the main one all the same.
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
    """Let SIGINT do nothing: for the end that a first one has begun, and a second would cut off."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
