"""Signals that end a session, held back or ignored while nothing may be lost.

Must not know what is done meanwhile.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A CI that cancels, and a terminal that is closed.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


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
