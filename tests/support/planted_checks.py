"""Checks of benchmarks/gpu_acceptance.py that come to grief."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def fine(figures: Any) -> None:
    figures.near("half", 0.5, 0.5, 0.01)
    figures.told("noise", 3)


def wrong(figures: Any) -> None:
    figures.near("half", 0.6, 0.5, 0.01)


def crashes(figures: Any) -> None:
    figures.told("before", 7)
    print("terminate called", flush=True)
    os.abort()


def is_killed(figures: Any) -> None:
    figures.told("before", 7)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(figures: Any) -> None:
    figures.told("before", 7)
    while True:
        time.sleep(60)


def raises(figures: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def says_nothing(figures: Any) -> None:
    pass
