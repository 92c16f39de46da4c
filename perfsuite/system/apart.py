"""A process in a session of its own: how it begins, and how all that it started ends."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite.system import background


def start_apart(
    command: Sequence[str], *, folder: Path, variables: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Return a process without input, whose output goes to a file; no terminal signals it."""
    with output.open("wb") as opened:  # no pipe, which ends with the last one that has it
        return subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the caller alone, which decides
        )


def end_all(process: subprocess.Popen[Any], variable: str) -> bool:
    """End a process, its group and all else that has its variable; return whether it left more."""
    # A daemon that has left the group would serve a later launch, perhaps of the other arm, with
    # the code of this one. It is known by its environment, which no other launch has. A process
    # that names itself (setproctitle) overwrites that, so what the living one started ends too.
    started = background.launched_processes(process.pid, background.list_processes())
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    more = left_behind(process.pid, variable)
    background.signal_all({*background.processes_with(variable), *started}, signal.SIGKILL)
    return bool(more)


def left_behind(group: int, variable: str) -> list[int]:
    """Return the processes with a variable outside of a group, but not the one that ends them."""
    found = []
    for pid in background.processes_with(variable):
        with contextlib.suppress(OSError):  # it has ended
            if os.getpgid(pid) != group and not background.is_watcher(pid):
                found.append(pid)
    return found
