"""Signals that end a session: as an exception, held back meanwhile, or kept from a process."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

# A CI that cancels, and a terminal that is closed.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# A shell adds it to the number of the signal that ended a process: the sum is its exit code.
SIGNALLED = 128


def exit_by(number: int) -> NoReturn:
    """Say which signal ended this process, and exit as a shell tells of it."""
    # Not through sys.stderr: the signal may have come while that was writing.
    os.write(2, f"perfsuite: ended by {signal.Signals(number).name}\n".encode())
    sys.exit(SIGNALLED + number)


@contextmanager
def ends_on_signals(end: Callable[[int], NoReturn] = exit_by) -> Iterator[None]:
    """Let each of `SIGNALS` end the block by an exception; a handler that is set stays.

    `end` raises the exception, given the signal; by default one line and that of `sys.exit`.
    """
    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    with handled_by(lambda number, _: end(number), ours):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT and `SIGNALS` back, and deliver the first of them afterwards."""
    # By other handlers. Blocking the signals would not suffice: another thread, such as one of a
    # numeric library, takes them then, and Python still runs the handler in the main one.
    came: list[int] = []
    try:
        with handled_by(lambda number, _: came.append(number), (signal.SIGINT, *SIGNALS)):
            yield
    finally:
        for first in came[:1]:
            signal.raise_signal(first)


@contextmanager
def handled_by(handler: Any, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Give signals a handler in the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs no handler here
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
