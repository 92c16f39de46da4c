"""Makes the forkserver end all processes that its controller and ranks leave. Runs in the server.

The server imports this before torch; in any other process the import changes nothing. When the
controller and the ranks have ended, the server kills what they left running, and ends. Where it is
still loading torch, a watcher process, detached from both, kills it and removes all their files.
"""

import ctypes
import gc
import os
import signal
import warnings
from multiprocessing.util import Finalize

from perfsuite.ranks import bootstrap
from perfsuite.system import background
from perfsuite.system.background import launched_processes, list_processes, signal_all, wait_for_end

# prctl(2), <linux/prctl.h>.
_PR_SET_CHILD_SUBREAPER = 36
# A server that has loaded torch ends within milliseconds of its last rank and its controller.
_GRACE_S = 0.5


def _begin(controller: int) -> None:
    # The controller has blocked SIGINT until it is ignored here. Ranks inherit that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    server = os.getpid()
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            _watch(controller, server)
        os._exit(0)
    os.waitpid(child, 0)
    # From here on, when a rank dies, its children become children of the server.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    Finalize(None, _end_children, [server], exitpriority=0)  # not in a rank
    gc.disable()  # walking what torch loads, again and again, is a quarter of the time it takes


def _watch(controller: int, server: int) -> None:
    """Wait until the controller ends, then until the server does, and clean up."""
    ctypes.CDLL(None).prctl(background.PR_SET_NAME, background.WATCHER.encode(), 0, 0, 0)
    # A server that ends first is replaced, by none where the controller is killed before that.
    wait_for_end(controller)
    if not wait_for_end(server, _GRACE_S):
        _end_children(server)
        signal_all([server], signal.SIGKILL)
    bootstrap.sweep_stale_folders()


def _end_children(server: int) -> None:
    signal_all(launched_processes(server, list_processes()), signal.SIGKILL)


_controller = os.environ.pop(bootstrap.CONTROLLER, None)
if _controller is not None:
    _begin(int(_controller))
