"""Tests of the suite itself. `pytester` runs inner pytest sessions for the plugin's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings

from perfsuite import remote

pytest_plugins = ["pytester"]

# No test asserts a duration, those of Hypothesis included.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def empty_memory() -> Iterator[None]:
    """`memory://` without a file of another test, and no connection that one has opened."""
    forget = remote._filesystem.cache_clear
    forget()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    forget()
