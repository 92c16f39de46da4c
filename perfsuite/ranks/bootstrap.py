"""How a process becomes a rank that cannot outlive its controller, and how its files are removed.

`enter_rank` is the first code that runs in a rank. Files of a group in `/tmp` and `/dev/shm` are
named after the processes that made them: a later session removes what a killed controller left.
"""

import ctypes
import faulthandler
import fcntl
import gc
import multiprocessing
import os
import pkgutil
import re
import select
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection
from pathlib import Path

from perfsuite.ranks.messages import RankStart
from perfsuite.system.background import PR_SET_PDEATHSIG, read_process
from perfsuite.system.environment import PID_NAMESPACE
from perfsuite.system.files import explained

# In the environment of the forkserver alone: the process id of its controller.
CONTROLLER = "PERFSUITE_CONTROLLER"
# In a folder named with `SERVER_PREFIX`: a link to multiprocessing's folder of sockets.
SOCKETS = "sockets"
SERVER_PREFIX = "perfsuite-server"
_GROUP_PREFIX = "perfsuite"
# Either prefix, the controller, and what tempfile adds. The gate's trees have longer names.
_OWNED = re.compile(rf"(?:{SERVER_PREFIX}|{_GROUP_PREFIX})-(\d+)-{PID_NAMESPACE}-\w+")
_PIDS_FOLDER = "pids"
_SHARED_MEMORY = Path("/dev/shm")

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# torchrun sets these, and init_process_group("env://") reads them.
REQUIRED_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# All that torchrun sets. A rank runs without them: code that reads them would join the group of the
# controllers, and references are computed without any.
TORCHRUN_VARIABLES = (
    *REQUIRED_VARIABLES,
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", RESTARTS),
    *("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
)

# OpenMP and MKL read them as the server loads torch. `torch.set_num_threads` holds for the thread
# that calls it: a backend's would compute with all cores, and round otherwise than a reference.
THREAD_VARIABLES = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")

# fcntl(2), <linux/fcntl.h>: not in Python's module before 3.13 on every platform.
_F_SETSIG = 10


def enter_rank(start: RankStart, pipe: Connection) -> None:
    """Make this process a safe rank, then run the worker. Target of a rank's process."""
    die_with_controller()
    gc.freeze()  # what the server has loaded, which no collection need walk
    gc.enable()
    # Ctrl-C reaches the whole foreground group; the controller alone decides what to do with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A child inherits the start method "forkserver"; the job's processes use Python's default.
    multiprocessing.set_start_method(None, force=True)
    send_output_to(log_path(start.folder, start.rank))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _record_process_id(start.folder)
    for name in (*TORCHRUN_VARIABLES, *THREAD_VARIABLES):
        os.environ.pop(name, None)
    tempfile.tempdir = start.folder
    os.environ["TMPDIR"] = start.folder
    # What NCCL's flight recorder writes when a collective times out.
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        os.environ[name] = str(Path(start.folder) / "flight_recorder_")
    for root in reversed(start.request.policy.import_roots):
        if root not in sys.path[:1]:
            sys.path.insert(0, root)
    if start.core is not None:
        os.sched_setaffinity(0, {start.core})
        # torch counts that core alone, and loader workers run on all.
        warnings.filterwarnings("ignore", "This DataLoader will create")
    elif start.request.policy.device != "cpu":
        os.sched_setaffinity(0, start.cores)
    pkgutil.resolve_name(start.request.policy.entry)(start, pipe)


def die_with_controller() -> None:
    """Have the kernel kill this process when the controller has ended, however it ended."""
    if (controller := multiprocessing.parent_process()) is None:
        raise RuntimeError("die_with_controller() is for processes that multiprocessing started")
    # The sentinel is a pipe whose other end only the controller holds (fcntl(2)). The kernel itself
    # sends the signal when that end closes, so it arrives while a C call holds the interpreter
    # lock. PR_SET_PDEATHSIG would not do: it watches the parent, which is the forkserver.
    sentinel = controller.sentinel
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sentinel], [], [], 0)[0]:  # it died before the signal was armed
        os.kill(os.getpid(), signal.SIGKILL)


def loader_worker_entry(folder: str, cores: Collection[int]) -> Callable[..., None]:
    """Return what a loader worker runs first: it dies with this rank, and may use all `cores`."""
    rank_pid = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def enter_loader_worker(*, is_of_main: bool = True) -> None:
        if is_of_main:  # else it would come as the thread ends that forked (prctl(2))
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != rank_pid:  # the rank died before the signal was armed
            os.kill(os.getpid(), signal.SIGKILL)
        os.sched_setaffinity(0, cores)  # on the rank's one core it would slow what it feeds
        _record_process_id(folder)

    return enter_loader_worker


def log_path(folder: str | Path, rank: int) -> Path:
    """Return the file of a rank's standard output and error."""
    return Path(folder) / f"rank{rank}.log"


def make_group_folder(prefix: str = _GROUP_PREFIX) -> Path:
    """Make a temporary folder with the controller's process id in its name; raises a WriteError."""
    with explained("make a temporary folder for the ranks", "; set TMPDIR to a folder with room"):
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-{PID_NAMESPACE}-"))
        (folder / _PIDS_FOLDER).mkdir()
    return folder


def remove_group_folder(folder: Path) -> None:
    """Remove a group's folder and the shared memory that its processes left."""
    for pid in (folder / _PIDS_FOLDER).glob("*"):
        for segment in _SHARED_MEMORY.glob(f"torch_{pid.name}_*"):
            segment.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_stale_folders() -> None:
    """Remove what this user's groups left when their controller was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_GROUP_PREFIX}-*"):
        owned = _OWNED.fullmatch(folder.name)
        process = read_process(int(owned[1])) if owned else None
        is_ended = process is None or process.state == "Z"
        if owned and is_ended and folder.is_dir() and folder.lstat().st_uid == os.getuid():
            if (folder / SOCKETS).is_symlink():
                shutil.rmtree((folder / SOCKETS).readlink(), ignore_errors=True)
            remove_group_folder(folder)


def why_stopped(pid: int) -> tuple[str, ...]:
    """Say that a process is stopped until a SIGCONT, if it is."""
    if (process := read_process(pid)) is None or process.state not in "Tt":
        return ()
    return (f"it is stopped: process {pid} was sent SIGSTOP, as a debugger does",)


def send_output_to(path: Path) -> None:
    """Send everything that this process writes, native code included, to one file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _record_process_id(folder: str) -> None:
    (Path(folder) / _PIDS_FOLDER / str(os.getpid())).touch()
