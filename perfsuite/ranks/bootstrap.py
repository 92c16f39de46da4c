"""What keeps a rank and its loader workers from outliving their controller, and cleans up after.

First code to run in a rank, and imports no torch. The parts of `/tmp` and `/dev/shm` that a group
uses carry the process ids that made them, so that a later session can clear up after a group whose
controller was killed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import importlib
import multiprocessing
import os
import re
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from perfsuite.errors import WriteError
from perfsuite.ranks.messages import RankStart

# The variable in which the server, and nobody else, is told the process id of its controller.
CONTROLLER = "PERFSUITE_CONTROLLER"
# In a folder of `SERVER_PREFIX`: a link to where multiprocessing keeps the controller's sockets.
SOCKETS = "sockets"
SERVER_PREFIX = "perfsuite-server"
_GROUP_PREFIX = "perfsuite"
# Either prefix, the controller, and what tempfile adds. Trees of the gate are named at more length.
_OWNED = re.compile(rf"(?:{SERVER_PREFIX}|{_GROUP_PREFIX})-(\d+)-\w+")
_PIDS_FOLDER = "pids"
_SHARED_MEMORY = Path("/dev/shm")

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# What torchrun sets and what init_process_group("env://") reads; the rest only describes them.
REQUIRED_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Its controller tells a rank its place. Code that looks for torchrun's would find another process
# group's, and references are computed without any (`worker.equivalence.references`).
TORCHRUN_VARIABLES = (
    *REQUIRED_VARIABLES,
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    RESTARTS,
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)

# fcntl(2), <linux/fcntl.h>: not in Python's module before 3.13 on every platform.
_F_SETSIG = 10
# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def enter_rank(start: RankStart, pipe: Connection) -> None:
    """Make this process a safe rank, then hand over to the worker. Target of a rank's process."""
    die_with_controller()
    # Ctrl-C reaches the whole foreground group; the controller alone decides what to do with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A child inherits its parent's "forkserver"; the job's own processes start as anywhere else.
    multiprocessing.set_start_method(None, force=True)
    send_output_to(log_path(start.folder, start.rank))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _note_process_id(start.folder)
    for name in TORCHRUN_VARIABLES:
        os.environ.pop(name, None)
    tempfile.tempdir = start.folder
    os.environ["TMPDIR"] = start.folder
    for root in reversed(start.import_roots):
        if root not in sys.path[:1]:
            sys.path.insert(0, root)
    if start.core is not None:
        os.sched_setaffinity(0, {start.core})
    load(start.entry)(start, pipe)


def load(entry: str) -> Callable[[Any, Connection], None]:
    """Return the function that "package.module:function" names; its module is imported now."""
    module, _, name = entry.partition(":")
    function: Callable[[Any, Connection], None] = getattr(importlib.import_module(module), name)
    return function


def die_with_controller() -> None:
    """Have the kernel kill this process when the controller is gone, however it went.

    The sentinel is a pipe whose other end only the controller holds. A signal on its hang-up
    comes from the kernel, so it works while a C call holds the interpreter lock, and through a
    forkserver, which is why PR_SET_PDEATHSIG does not do: it watches the forkserver (fcntl(2)).
    """
    controller = multiprocessing.parent_process()
    if controller is None:
        raise RuntimeError("die_with_controller() is for processes that multiprocessing started")
    sentinel = controller.sentinel
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, _F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(sentinel, fcntl.F_GETFL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([sentinel], [], [], 0)[0]:  # it died before the signal was armed
        os.kill(os.getpid(), signal.SIGKILL)


def loader_worker_entry(folder: str, cores: Iterable[int]) -> Callable[[], None]:
    """Return what a loader worker of this rank runs first.

    The worker dies with the rank that forked it, and may run on any of `cores`: it would otherwise
    inherit the rank's one core and slow the very step that it is to feed.
    """
    rank_pid = os.getpid()
    allowed = set(cores)
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def enter_loader_worker() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != rank_pid:  # the rank died before the signal was armed
            os.kill(os.getpid(), signal.SIGKILL)
        os.sched_setaffinity(0, allowed)
        _note_process_id(folder)

    return enter_loader_worker


def log_path(folder: str | Path, rank: int) -> Path:
    """Where a rank's standard output and error go."""
    return Path(folder) / f"rank{rank}.log"


def make_group_folder(prefix: str = _GROUP_PREFIX) -> Path:
    """Make a fresh temporary folder that names this controller, for a group unless said otherwise.

    Raises:
        WriteError: There is no room for it, or no place.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-"))
        (folder / _PIDS_FOLDER).mkdir()
    except OSError as error:
        raise WriteError(
            f"cannot make a temporary folder for the ranks: {error.strerror or error}; set TMPDIR "
            "to a folder with room"
        ) from error
    return folder


def remove_group_folder(folder: Path) -> None:
    """Remove a group's folder and the shared memory that its processes left."""
    for note in (folder / _PIDS_FOLDER).glob("*"):
        for segment in _SHARED_MEMORY.glob(f"torch_{note.name}_*"):
            segment.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_stale_folders() -> None:
    """Remove what groups of this user left whose controller is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_GROUP_PREFIX}-*"):
        owned = _OWNED.fullmatch(folder.name)
        if owned is None or not _is_gone(int(owned[1])):
            continue
        if folder.is_dir() and folder.lstat().st_uid == os.getuid():
            if (folder / SOCKETS).is_symlink():
                shutil.rmtree((folder / SOCKETS).readlink(), ignore_errors=True)
            remove_group_folder(folder)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still until somebody sends it SIGCONT."""
    return _status(pid) in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def _is_gone(pid: int) -> bool:
    return _status(pid) in (None, psutil.STATUS_ZOMBIE)


def _status(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None


def send_output_to(path: Path) -> None:
    """Send everything that this process writes, native code included, to one file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _note_process_id(folder: str) -> None:
    (Path(folder) / _PIDS_FOLDER / str(os.getpid())).touch()
