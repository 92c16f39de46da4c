"""Room for what a session writes: shared memory, the temporary folder, the results."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from perfsuite.cli.doctor.findings import Finding, Status
from perfsuite.units import format_bytes

# Docker's default for all of /dev/shm. Measured: two workers with batches of 9.6 MB pass at 64 MiB
# and fail at 4 MiB with "No space left on device".
_SHARED_MEMORY_BYTES = 64 * 2**20
# MNIST takes 66 MB on disk, downloaded and unpacked, and a trace of torch.profiler tens of MB.
_LITTLE_DISK_BYTES = 256 * 2**20


def examine_storage() -> list[Finding]:
    """Return what is found about free room, here and now."""
    return [
        examine_folder("shared memory", lambda: Path("/dev/shm"), shared_memory_finding),
        examine_folder("temporary folder", lambda: Path(tempfile.gettempdir()), disk_finding),
        examine_folder("current directory", Path.cwd, disk_finding),
    ]


def examine_folder(
    subject: str, find: Callable[[], Path], judge: Callable[[str, Path, int], Finding]
) -> Finding:
    """Return `judge(subject, folder, free bytes)` of the folder found, which can be written."""
    try:
        folder = find()
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(subject, "fail", str(error), "make the folder, or work in another one")
    if not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} cannot be written by user {os.getuid()}"
        return Finding(subject, "fail", text, "change its permissions, or work in another folder")
    return judge(subject, folder, free_bytes)


def shared_memory_finding(subject: str, folder: Path, free_bytes: int) -> Finding:
    """Judge the free part of the shared memory."""
    text = f"{format_bytes(free_bytes)} free in {folder}"
    if free_bytes >= _SHARED_MEMORY_BYTES:
        return Finding(subject, "ok", text)
    text += ": loader workers pass their batches through it, and need "
    text += format_bytes(_SHARED_MEMORY_BYTES)
    return Finding(subject, "fail", text, "docker run --shm-size=1g, or remove what fills it")


def disk_finding(subject: str, folder: Path, free_bytes: int) -> Finding:
    """Judge the free part of the disk under a folder."""
    text = f"{format_bytes(free_bytes)} free in {folder}"
    if free_bytes >= _LITTLE_DISK_BYTES:
        return Finding(subject, "ok", text)
    status: Status = "warn" if free_bytes else "fail"
    text += f": data sets and traces may need {format_bytes(_LITTLE_DISK_BYTES)}"
    return Finding(subject, status, text, "make room")
