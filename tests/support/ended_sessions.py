"""Sessions in processes of their own, to be ended from outside, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from shared_memory import orphaned_segments

from perfsuite.records.cell import CellLine, decode_line
from perfsuite.system.background import processes_with

# No process of a session may live on for longer (issue 7).
MOST_S = 2.0
_PATIENCE_S = 120.0

PYTEST = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "--perf-device=cpu")
PERFSUITE = ("-c", "from perfsuite.cli.app import main; main()")


class RunningSession:
    """A session in a folder, in a process group and with temporary files of its own."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir=folder.parent))
        self._output = folder / "output.txt"
        self._shared_before = _shared()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", *command],
                cwd=folder,
                env={**os.environ, "TMPDIR": str(self.temporary), "COLUMNS": "200"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell's background job ignores Ctrl-C, and its children would too.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._output.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when something has become true of a session that runs."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.01)

    def press_ctrl_c(self) -> None:
        """Send what a terminal sends: a signal to every process of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        """Return what it ended in."""
        return self.process.wait(_PATIENCE_S)

    def commands(self) -> list[str]:
        """The command line of each of its processes."""
        return [" ".join(process.info["cmdline"] or ()) for process in self.processes()]

    def processes(self) -> list[psutil.Process]:
        """All of its processes, whoever their parents are by now, those of its commands too."""
        of_commands = processes_with(f"TMPDIR={self.temporary}")
        return [
            process
            for process in psutil.process_iter(["status", "cmdline"])
            if process.info["status"] != psutil.STATUS_ZOMBIE
            and (process.pid in of_commands or _session_of(process.pid) == self.process.pid)
        ]

    def leftovers(self) -> list[str]:
        """What is left `MOST_S` seconds after its end: processes, files, shared memory."""
        deadline_s = time.monotonic() + MOST_S
        while (left := self._left()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return left

    def _left(self) -> list[str]:
        shared = _shared() - self._shared_before
        return [
            *map(_describe, self.processes()),
            *(str(path) for path in [*self.temporary.iterdir(), *shared] if not _is_cache(path)),
        ]


def _shared() -> set[Path]:
    # A semaphore has its name for an instant only, between making it and opening it.
    return orphaned_segments() | set(Path("/dev/shm").glob("sem.mp-*"))


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _describe(process: psutil.Process) -> str:
    found = process.info
    return f"process {process.pid} ({found['status']}): {' '.join(found['cmdline'] or ())[-80:]}"


def _is_cache(path: Path) -> bool:
    """Whether it is torch's own, which later sessions read."""
    return path.name.startswith("torchinductor_")


def cells_in(folder: Path) -> list[CellLine]:
    """The finished cells of the last session in a folder; half of a last line is none."""
    path = folder / "results" / "cells.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [decode_line(line) for line in lines]
