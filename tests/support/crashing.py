"""Kills a process at each step of a write in turn, as a power cut would.

A child is forked for each crash; in it the interpreter reports every C function before its call,
and at the n-th that touches a file the child kills itself. Nothing of the code under test is
replaced.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from perfsuite.gate.baselines import select
from perfsuite.system import files

# What the writing of a file consists of, by the names of the C functions.
STEPS = {
    *("mkdir", "open", "flock", "write", "flush", "fchmod", "fsync", "truncate", "close"),
    *("rename", "replace", "link", "unlink"),
}


def crash_at(number: int) -> None:
    """Let this process die at its `number`-th step of a write by perfsuite, from 1."""
    steps_left = itertools.count(number - 1, -1)

    def count_down(_: str) -> None:
        if next(steps_left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(count_down)


def steps_of(act: Callable[[], Any]) -> list[str]:
    """Return the steps of a write, in their order."""
    steps: list[str] = []
    _watch(steps.append)
    try:
        act()
    finally:
        sys.setprofile(None)
    return steps


def crash_beyond(num_bytes: int) -> None:
    """Let the kernel end this process in the midst of a write that makes a file longer."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def crashes(act: Callable[[], Any], *prepare: Callable[[], None]) -> Iterator[int]:
    """Call `act` in children that crash at their first, second, ... step; yield after each crash.

    The last child has no step left to crash at, and must end well.

    Args:
        act: What writes.
        prepare: Called in each child before.
    """
    for number in itertools.count(1):
        code = exit_code_of(lambda number=number: crash_at(number), *prepare, act)
        if code is not None:
            assert code == 0
            return
        yield number


def exit_code_of(*acts: Callable[[], Any]) -> int | None:
    """Call functions in a forked child and return its exit code, None where it was killed."""
    child = os.fork()
    if child == 0:
        try:
            for act in acts:
                act()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def _watch(see: Callable[[str], None]) -> None:
    """Call `see` with the name of each step right before it."""

    def look(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in STEPS and _is_in_a_write(frame):
            see(function.__name__)

    sys.setprofile(look)


def _is_in_a_write(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in (files.__file__, select.__file__):
            return True
        frame = frame.f_back
    return False
