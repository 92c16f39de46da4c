"""Starts processes from a forkserver that has torch loaded: each takes a tenth of a second."""

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import types
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.util import Finalize, get_temp_dir
from typing import TypeVar

from perfsuite.errors import require_torch
from perfsuite.ranks import bootstrap

Start = TypeVar("Start")

# Modules that each rank would otherwise import: the first DistributedDataParallel of a process
# imports torch._dynamo (900 modules, 1 s), the first pipeline torch.export.
_PRELOADED = (
    *("perfsuite.ranks.reaper", "torch", "torch.distributed", "torch._dynamo"),
    *("torch.distributed.fsdp", "torch.distributed.tensor.parallel"),
    *("torch.distributed.pipelining", "torch.utils.flop_counter", "perfsuite.worker.main"),
)
# The path of a Unix socket has 107 characters at most (unix(7)), and multiprocessing's own
# "/pymp-xxxxxxxx/listener-xxxxxxxx" takes 32 of them.
_LONGEST_TEMPORARY_PATH = 75


def start_process(
    target: Callable[[Start, Connection], None], start: Start
) -> tuple[ForkServerProcess, Connection]:
    """Return a new process that runs `target(start, its end of a pipe)`, and the other end."""
    context = start_server()
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(start, theirs))
    # Without the controller's main script, as pytest's: each rank would pay for its imports. Jobs
    # carry their functions by value instead.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    theirs.close()
    return process, ours


def start_server() -> ForkServerContext:
    """Return the context of the server with torch; the first call in a session starts it.

    The server removes what a killed controller leaves: it is started before files are made. Its own
    folder is some milliseconds older, and left to the next session by a kill just between.
    """
    require_torch()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    ours = dict.fromkeys(bootstrap.THREAD_VARIABLES, "1") | {bootstrap.CONTROLLER: str(os.getpid())}
    before = {name: os.environ[name] for name in ours if name in os.environ}
    # Ctrl-C, which reaches the whole terminal, would end the server with a traceback: a process
    # inherits blocked signals, but no handlers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        resource_tracker.ensure_running()  # here, since files wait for the server alone
        _record_sockets(os.getpid())
        os.environ |= ours
        forkserver.ensure_running()
    finally:
        for name in ours:
            os.environ.pop(name, None)
        os.environ |= before
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


@functools.cache
def _record_sockets(_pid: int) -> None:
    """Link to multiprocessing's folder of sockets, which a killed controller would leave behind."""
    folder = bootstrap.make_group_folder(bootstrap.SERVER_PREFIX)
    before = tempfile.tempdir
    if len(tempfile.gettempdir()) > _LONGEST_TEMPORARY_PATH:
        tempfile.tempdir = "/tmp"
    try:
        # Made in `tempdir` by the first call.
        (folder / bootstrap.SOCKETS).symlink_to(get_temp_dir())
    finally:
        tempfile.tempdir = before
    Finalize(None, bootstrap.remove_group_folder, [folder], exitpriority=0)  # not in a fork
