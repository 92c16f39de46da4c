"""Tests of the suite itself. `pytester` runs inner pytest sessions for the plugin's tests."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from shared_memory import orphaned_segments

from perfsuite.system import urls
from perfsuite.system.signals import SIGNALS

pytest_plugins = ["pytester"]

# A session that a test starts is no worker of xdist, though this one may be.
for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
    del os.environ[name]

# No test asserts a duration, those of Hypothesis included.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def nothing_left() -> Iterator[None]:
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


@pytest.fixture
def empty_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`memory://`, which only tests know, without a file or a connection of another test."""
    memory = urls._Protocol(package="fsspec", extra="none", failures=())
    monkeypatch.setitem(urls._PROTOCOLS, "memory", memory)
    pipe_file, creating = MemoryFileSystem.pipe_file, threading.Lock()

    def pipe_file_in_one_step(*args: Any, **options: Any) -> None:
        """As a server does: fsspec's own looks for a name and writes it in two steps."""
        with creating:
            pipe_file(*args, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file_in_one_step)
    forget = urls._filesystem.cache_clear
    forget()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    forget()


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Signals as a process has them at first: a session that has measured handles them."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long runs out unless -m asks for them; any other -m means what it says."""
    if "soak" in config.option.markexpr:
        return
    config.hook.pytest_deselected(items=[item for item in items if _is_long(item)])
    items[:] = [item for item in items if not _is_long(item)]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("soak") is not None
