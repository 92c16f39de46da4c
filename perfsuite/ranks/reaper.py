"""What the server that ranks are forked from does first: it sees to it that nothing outlives it.

Loaded in the server before torch; loaded anywhere else this changes nothing. A server whose
controller and ranks are gone, however they went, ends what they have left running, and itself. One
that is still loading torch cannot, so a watcher, which is nobody's child, ends it, and removes the
files of all of them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import select
import signal
import warnings

import psutil

from perfsuite.ranks import bootstrap

# prctl(2), <linux/prctl.h>.
_PR_SET_CHILD_SUBREAPER = 36
# A server that serves ends within milliseconds of its last rank, and that of the controller.
_GRACE_S = 0.5


def _begin(controller: int) -> None:
    # The controller has blocked it until it is ignored. Ranks inherit that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _start_watcher(controller)
    # From here on what a rank has started becomes a child of the server when the rank dies.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    atexit.register(_end_own_children, os.getpid())


def _start_watcher(controller: int) -> None:
    server = os.getpid()
    if os.getppid() != controller:  # it died before this line
        bootstrap.sweep_stale_folders()
        _end(server)
    parent, own = os.pidfd_open(controller), os.pidfd_open(server)
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _watch(parent, own, server)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(parent)
    os.close(own)


def _watch(controller: int, own: int, server: int) -> None:
    """Wait for the end of the controller and then for the server's, by their pidfds."""
    ready, _, _ = select.select([controller, own], [], [])
    if controller not in ready:
        return  # it will start another server
    if not select.select([own], [], [], _GRACE_S)[0]:
        with contextlib.suppress(psutil.NoSuchProcess):
            _end(server)
    bootstrap.sweep_stale_folders()


def _end(server: int) -> None:
    """End the server, which may be this very process, with all that it has begun."""
    _end_children(server)
    psutil.Process(server).kill()


def _end_own_children(server: int) -> None:
    if os.getpid() == server:  # and not a rank, which has inherited the exit handler
        _end_children(server)


def _end_children(server: int) -> None:
    for child in psutil.Process(server).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


_controller = os.environ.pop(bootstrap.CONTROLLER, None)
if _controller is not None:
    _begin(int(_controller))
