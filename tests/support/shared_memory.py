"""Shared memory that nobody will remove any more."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

# torch names a segment by the process that made it.
_SEGMENT = re.compile(r"torch_(\d+)_.*")


def orphaned_segments() -> set[Path]:
    """Segments of torch whose maker is gone; those of living processes are other tests' perhaps."""
    named = ((path, _SEGMENT.fullmatch(path.name)) for path in Path("/dev/shm").iterdir())
    return {path for path, name in named if name and not psutil.pid_exists(int(name[1]))}
