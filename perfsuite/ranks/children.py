"""A rank's children: loader workers that must not work on between rounds.

They would fill their queues while the collector runs or the other arm has its turn, which hides the
time of loading, and would take a processor from that arm. Must not know what they do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal


def stop_children() -> None:
    """Stop every process that this one has started, where it is."""
    _signal_children(signal.SIGSTOP)


def resume_children() -> None:
    """Let them go on."""
    _signal_children(signal.SIGCONT)


def _signal_children(number: signal.Signals) -> None:
    for child in multiprocessing.active_children():
        if child.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(child.pid, number)
