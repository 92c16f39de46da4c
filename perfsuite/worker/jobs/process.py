"""A rank's children: loader workers that must not work on between rounds.

They would fill their queues while the collector runs or the other arm has its turn, which hides the
time of loading, and would take a processor from that arm. Must not know what they do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal

import torch

from perfsuite.ranks.messages import RankStart


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


def own_device(start: RankStart) -> torch.device:
    """The device of this rank, which the worker has made the current one."""
    if start.device == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
