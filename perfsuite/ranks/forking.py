"""Processes forked from a server that has torch loaded already: each starts in a tenth of a second.

Must not know what runs in them, and imports no torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import TypeVar

Start = TypeVar("Start")

# The modules whose import a rank would otherwise pay for: the first DistributedDataParallel of a
# process imports torch._dynamo (900 modules, 1 s), the first pipeline torch.export.
_PRELOADED = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "perfsuite.ranks.worker",
)


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
    return context


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
