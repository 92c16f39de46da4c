"""Tests of the suite itself. `pytester` runs inner pytest sessions for the plugin's tests."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from shared_memory import orphaned_segments

# Inner sessions in this process forget what they imported, and a module that is imported again is
# another one: what a session of ours imports is loaded for all of them here.
import perfsuite.plugin.measured_session  # noqa: F401
from perfsuite.system import urls
from perfsuite.system.signals import SIGNALS

pytest_plugins = ["pytester"]

# A session that a test starts is nobody's worker, though this one may be xdist's.
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
def empty_memory() -> Iterator[None]:
    """`memory://` without a file of another test, and no connection that one has opened."""
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
