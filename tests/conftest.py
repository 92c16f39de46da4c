"""Tests of the suite itself. `pytester` runs inner pytest sessions for the plugin's tests."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_benchmark.plugin
import typer.main
import typer.testing
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings
from shared_memory import orphaned_segments

# Inner sessions in this process forget what they imported, and a module that is imported again is
# another one: what a session of ours imports is loaded for all of them here.
import perfsuite.plugin.session.measured_session  # noqa: F401
from perfsuite.ranks import forkserver
from perfsuite.system import urls
from perfsuite.system.signals import SIGNALS
from perfsuite.system.timing_lock import LOCK_DIR

pytest_plugins = ["pytester"]
# Modules with tests of a minute and more.
_LONGEST = {
    *("test_gate_command", "test_gate_user_code", "test_gate_waits", "test_gate_turns"),
    "test_commands",
}
# Fixtures that start ranks, or a pytest session.
_STARTERS = {"pytester", "rank_group", "check_equivalence", "train_on_ranks", "nothing_left"}

# A session that a test starts is no worker of xdist and no step of a workflow; this one may be. On
# CI, pytest repeats the whole message of a failure in its summary.
for name in list(os.environ):
    if name.startswith(("PYTEST_XDIST_", "GITHUB_")) or name in ("CI", "BUILD_NUMBER"):
        del os.environ[name]

# No test asserts a duration, those of Hypothesis included. The same examples are tried each time,
# so that no merge is stopped by chance; HYPOTHESIS_PROFILE=night tries many others.
settings.register_profile("patient", deadline=None, derandomize=True)
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("night", deadline=None, max_examples=1_000, print_blob=True)


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
    monkeypatch.setitem(urls._EXTRAS, "memory", "memory")
    monkeypatch.setitem(urls._FAILURES, "memory", ())
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fast` is for the inner loop."""
    parser.addoption(
        "--fast", action="store_true", help="leave out what starts ranks, or a pytest session"
    )


def pytest_configure(config: pytest.Config) -> None:
    """With `--fast`, properties are tried with fewer examples too."""
    daily = "fast" if config.option.fast else "patient"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", daily))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long runs out unless -m asks for them; any other -m means what it says.

    What takes minutes comes first: begun last, it would keep one worker alone.
    """
    left_out: list[pytest.Item] = []
    if "soak" not in config.option.markexpr:
        left_out += [item for item in items if item.get_closest_marker("soak")]
    if config.option.fast:
        left_out += [item for item in items if _starts_processes(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


def pytest_collection_finish() -> None:
    """Keep collections of garbage from walking all modules and tests, which takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter end as ever."""
    gc.unfreeze()


def _starts_processes(item: pytest.Item) -> bool:
    asked = set(getattr(item, "fixturenames", ()))
    return bool(asked & _STARTERS) or item.get_closest_marker("slow") is not None


@pytest.fixture(autouse=True, scope="session")
def _no_process_in_a_fast_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of --fast that starts a rank or a pytest session fails: it wants the mark `slow`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.option.fast:
            patch.setattr(forkserver, "require_torch", _refuse)
            patch.setattr(subprocess, "Popen", _PlainPopen)
        yield


@pytest.fixture(autouse=True, scope="session")
def lock_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where sessions of this worker hold the machine: no test judges a time of its own."""
    folder = tmp_path_factory.mktemp("lock")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOCK_DIR, str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def _no_bytecode_of_what_tests_write() -> Iterator[None]:
    """Python takes a module that is written twice in a second, with equal size, for the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_are_made_once() -> Iterator[None]:
    """typer reads the signature of every verb again for each call of the command line."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(typer.main.get_command)
        patch.setattr(typer.main, "get_command", once)
        patch.setattr(typer.testing, "_get_command", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def _the_processor_is_described_once() -> Iterator[None]:
    """pytest-benchmark starts an interpreter to describe it, in each session that stores a run."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(pytest_benchmark.plugin.get_cpu_info)
        patch.setattr(pytest_benchmark.plugin, "get_cpu_info", lambda: dict(once()))
        yield


def _refuse(*_: object) -> None:
    raise AssertionError("starts processes: mark the test or its module `slow`")


class _PlainPopen(subprocess.Popen[Any]):
    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        if isinstance(args, list) and {"pytest", "perfsuite"} & set(map(str, args)):
            _refuse()
        super().__init__(args, *rest, **options)
