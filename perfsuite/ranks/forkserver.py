"""Processes forked from a server that has torch loaded already: each starts in a tenth of a second.

Must not know what runs in them, and imports no torch.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TypeVar

from perfsuite.ranks import bootstrap

Start = TypeVar("Start")

# The modules whose import a rank would otherwise pay for: the first DistributedDataParallel of a
# process imports torch._dynamo (900 modules, 1 s), the first pipeline torch.export.
_PRELOADED = (
    "perfsuite.ranks.reaper",
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "perfsuite.worker.main",
)
# The path of a Unix socket has 107 characters at most (unix(7)), of which multiprocessing's own
# "/pymp-xxxxxxxx/listener-xxxxxxxx" takes 32.
_LONGEST_TEMPORARY_PATH = 75


def start_process(
    target: Callable[[Start, Connection], None], start: Start
) -> tuple[ForkServerProcess, Connection]:
    """Return a new process that runs `target(start, its end of a pipe)`, and our end."""
    context = _forkserver()
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(start, theirs))
    with _without_main_module():
        process.start()
    theirs.close()
    return process, ours


def _forkserver() -> ForkServerContext:
    """Return the context whose server has torch loaded; the first start pays for that once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    _note_sockets(os.getpid())
    os.environ[bootstrap.CONTROLLER] = str(os.getpid())
    try:
        with _deaf_children():
            forkserver.ensure_running()
    finally:
        del os.environ[bootstrap.CONTROLLER]
    return context


@functools.cache
def _note_sockets(pid: int) -> None:
    """Leave word of where multiprocessing keeps its sockets, which a killed controller leaves."""
    folder = bootstrap.make_group_folder(bootstrap.SERVER_PREFIX)
    before = tempfile.tempdir
    if len(tempfile.gettempdir()) > _LONGEST_TEMPORARY_PATH:
        tempfile.tempdir = "/tmp"
    try:
        (folder / bootstrap.SOCKETS).symlink_to(get_temp_dir())  # asks for tempfile's folder once
    finally:
        tempfile.tempdir = before
    atexit.register(_remove_of, pid, folder)


def _remove_of(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # and not a fork of the controller, which has inherited the exit handler
        bootstrap.remove_group_folder(folder)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Start processes that Ctrl-C, which reaches all of the terminal's, does not end.

    A process inherits what is blocked, and not a handler: the server would show a traceback of the
    import that it was in.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Start a process without having it import the controller's main script again.

    multiprocessing runs the parent's main module in every child, here pytest's or another tool's
    script, which costs its imports in each rank. Jobs carry their functions by value instead.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
