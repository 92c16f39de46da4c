"""What every test of real ranks is held to."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from shared_memory import orphaned_segments


@pytest.fixture
def nothing_left() -> Any:
    """Fails if a process, a temporary folder or shared memory of a group stays."""
    me = psutil.Process()

    def traces() -> set[str]:
        folders = {str(path) for path in Path(tempfile.gettempdir()).glob(f"perfsuite-{me.pid}-*")}
        return folders | set(map(str, orphaned_segments()))

    before = traces()
    yield
    ranks = [
        process
        for process in me.children(recursive=True)
        if process.parent() != me and process.status() != psutil.STATUS_ZOMBIE
    ]
    assert ranks == []
    assert traces() - before == set()
