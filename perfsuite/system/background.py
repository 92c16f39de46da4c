"""What works beside the main thread of a process; copied into an arm: the standard library alone.

While the other arm has its turn, the other processes of a launch are stopped, and the processor
time of threads is counted. What either waits for goes on, and is noticed. When the gate is killed,
all that a launch started is ended. As a program it runs a command that ends so too: see `end_with`.
"""

import contextlib
import ctypes
import functools
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# Threads that the gate itself has in a launch have names that begin so.
OUR_THREADS = "perfsuite"
# The process that outlives a launch has this name.
WATCHER = "perfsuite-ends"
# What the gate gives to a launch: its own process id, and a log that no other launch has.
GATE = "PERFSUITE_ARM_GATE"
LOG = "PERFSUITE_ARM_LOADED"
# prctl(2), <linux/prctl.h>.
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
# States in proc(5): stopped, traced, zombie, dead. None of them is to be stopped or resumed.
_AT_REST = frozenset("TtZX")
# Where the kernel has those who wait for a time or a network (proc(5)): in nanosleep(2), recv(2).
_WAITS = frozenset({b"hrtimer_nanosleep", b"do_nanosleep", b"wait_woken", b"sk_wait_data"})
# Of the turns: a thread that looks now and then whether there is work is of no account. One that
# waits for a time or a network as a turn ends is seldom there by chance.
_MOST_HIDDEN, _MOST_WAITS = 0.2, 0.05
# Of the seconds of its own turns, an arm's threads may work so many in the other arm's: half of the
# usual tolerance. One that only looks whether there is work uses less, and less than so many.
MOST_WORK, LEAST_WORK_S = 0.01, 0.001
# Looks at threads as a turn has ended, and the pause before each, in which a queue's passes on.
_MOST_LOOKS, _SETTLE_S = 5, 0.0001
_POLL_S = 0.05
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process as proc(5) shows it: `session` and `parent` are ids, `cpu_s` is its own time."""

    state: str
    parent: int
    session: int
    cpu_s: float


class Background:
    """The other processes of a launch, and the other threads of this one."""

    def __init__(self) -> None:
        """Call it early: it forks, as `end_with` says."""
        self._found: set[int] = set()
        self._known: set[int] = set()
        self._stopped: set[int] = set()
        self._told: set[int] = set()
        self._waker = end_with(int(os.environ[GATE]), f"{LOG}={os.environ[LOG]}")
        self._newest = b""

    def stop(self, *, looks: bool = False) -> None:
        """Stop the other processes of the launch, first those that were running before.

        Without a child there are none, unless this `looks`, for milliseconds, for orphans too.
        """
        signal_all(self._known, signal.SIGSTOP)
        self._stopped |= self._known
        found = self.processes(looks=looks)
        new = {pid for pid, process in found.items() if process.state not in _AT_REST}
        for pid in new - self._told:
            with contextlib.suppress(BlockingIOError):  # thousands of processes: those are enough
                os.write(self._waker, f"{pid}\n".encode())
                self._told.add(pid)
        signal_all(new, signal.SIGSTOP)
        self._stopped |= new
        self._known = found.keys() & self._stopped

    def resume(self) -> None:
        """Resume the processes that `stop` has stopped."""
        signal_all(self._stopped, signal.SIGCONT)
        self._stopped = set()

    def processes(self, *, looks: bool = False) -> dict[int, Process]:
        """Return all other processes of the launch, by their ids."""
        if not (looks or self._found or has_children()):
            return {}
        newest = newest_process()
        if looks or newest != self._newest:
            processes = list_processes()
            found = launched_processes(os.getpid(), processes)
            found |= daemons(processes) if looks or self._found - found.keys() else {}
            self._newest = newest
        else:  # nothing has started since, and a look at all processes takes milliseconds
            living = ((pid, read_process(pid)) for pid in self._found)
            found = {pid: one for pid, one in living if one is not None and one.state not in "ZX"}
        self._found = {*found}
        return found

    def threads(self) -> list[int]:
        """Return the other threads of this process, without our own."""
        others = [int(name) for name in os.listdir("/proc/self/task")]  # noqa: PTH208  # faster
        if len(others) == 1:
            return []
        ours = {one.native_id for one in threading.enumerate() if one.name.startswith(OUR_THREADS)}
        return [thread for thread in others if thread not in ours | {os.getpid()}]

    def thread_seconds(self) -> dict[int, float]:
        """Return the processor seconds of Python's other threads, by thread."""
        return {thread: used.cpu_s for thread, used in thread_usage().items()}


class Usage(NamedTuple):
    """What a thread has used: processor seconds, and how often it got a processor."""

    cpu_s: float = 0.0
    num_runs: int = 0


def thread_usage() -> dict[int, Usage]:
    """Return what Python's other threads have used, by thread."""
    # Not a library's: an OpenMP pool spins on after its work is done.
    found = {}
    for thread in threading.enumerate():
        thread_id = thread.native_id
        is_ours = thread.name.startswith(OUR_THREADS) or thread is threading.current_thread()
        if thread_id is not None and not is_ours:
            with contextlib.suppress(OSError):  # it has just ended
                used = Path(f"/proc/self/task/{thread_id}/schedstat").read_bytes().split()
                found[thread_id] = Usage(int(used[0]) / 1e9, int(used[2]))
    return found


class Waits:
    """Whether work beside the main thread makes progress during the other arm's turns.

    A thread that runs meanwhile has waited for something before, or does its work then. A process
    is stopped, but what it or a thread waits for as its turn ends (a time, a disk, a network) goes
    on. Who waits for work, as an idle loader worker does, waits on a pipe or a lock.
    """

    def __init__(self) -> None:
        self._num_turns = self._num_hidden = self._num_waits = 0
        self._turns_s = self._work_s = self._began_s = 0.0
        self._is_any_waiting = False
        self._before: dict[int, Usage] = {}

    @property
    def are_hidden(self) -> bool:
        """Whether that was so in a good part of the turns, or in fewer for long."""
        most_hidden, most_waits = (self._num_turns * it for it in (_MOST_HIDDEN, _MOST_WAITS))
        works = self._work_s > max(MOST_WORK * self._turns_s, LEAST_WORK_S)
        return works or self._num_hidden > most_hidden or self._num_waits > most_waits

    def end_turn(self, children: Iterable[int]) -> None:
        """Look at the children, before they are stopped, and at the threads; then `settle`."""
        if self._num_turns:
            self._turns_s += time.perf_counter() - self._began_s
        self._before = thread_usage()
        self._is_any_waiting = any(map(_is_waiting, (*children, *self._before)))

    def settle(self) -> None:
        """Let a queue's thread pass on what it was given in the turn; work of threads counts."""
        first = self._before
        for _ in range(_MOST_LOOKS if first else 0):
            time.sleep(_SETTLE_S)
            last, self._before = self._before, first | thread_usage()
            if self._before == last:
                break
        self._work_s += _worked_s(first, self._before)

    def begin_turn(self) -> None:
        """Look at the threads that ran before the other arm's turn."""
        now = thread_usage() if self._before else {}
        ended = Usage(num_runs=sys.maxsize)  # it has run
        runs = ((now.get(one, ended), used) for one, used in self._before.items())
        self._work_s += _worked_s(self._before, now)
        self._num_turns += 1
        self._num_hidden += any(after.num_runs > used.num_runs for after, used in runs)
        self._num_waits += self._is_any_waiting
        self._began_s = time.perf_counter()


def _worked_s(before: dict[int, Usage], now: dict[int, Usage]) -> float:
    return sum(used.cpu_s - before.get(one, Usage()).cpu_s for one, used in now.items())


def _is_waiting(thread: int) -> bool:
    """Whether a thread, or the first one of a process, waits for a time, a disk or a network.

    Others of a process may be watchdogs, as torch's compile workers have, which sleep for ever.
    """
    with contextlib.suppress(OSError):  # it has just ended, or this may not be known
        found, place = read_process(thread), Path(f"/proc/{thread}/wchan")
        return (found is not None and found.state == "D") or place.read_bytes() in _WAITS
    return False


def launched_processes(own: int, processes: dict[int, Process]) -> dict[int, Process]:
    """Return the living processes that `own` or one of these started, or of its session."""

    @functools.cache
    def belongs(pid: int) -> bool:
        process = processes.get(pid)
        if pid == own or process is None:
            return pid == own
        return process.session == own or belongs(process.parent)

    others = {pid: one for pid, one in processes.items() if pid != own and one.state not in "ZX"}
    return {pid: one for pid, one in others.items() if belongs(pid)}


def daemons(processes: dict[int, Process]) -> dict[int, Process]:
    """Return the living processes of this launch that come from none which still belongs to it.

    They have the variable of the launch's log. A process between may have hidden its environment.
    """
    log = f"{LOG}={os.environ.get(LOG)}"
    named = {pid for pid in (os.getpid(), *processes_with(log)) if pid in processes}

    def first(pid: int) -> int:
        found = pid
        while (parent := processes.get(pid)) is not None:
            pid = parent.parent
            found = pid if pid in named else found
        return found

    own = first(os.getpid())
    left = {pid for pid in named if first(pid) != own and not is_watcher(pid)}
    return {pid: processes[pid] for pid in left if processes[pid].state not in "ZX"}


def is_watcher(pid: int) -> bool:
    """Whether a process is one that outlives a launch, or has just ended."""
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/comm").read_text().strip() == WATCHER
    return True


def list_processes() -> dict[int, Process]:
    """Return every process that is visible here."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  # faster
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def read_start_s(pid: int) -> float:
    """Return when a process began, by the clock that stamps files, to about 0.01 s.

    psutil's `create_time` adds to the kernel's time of boot, which lacks its fraction of a second.
    """
    with open(f"/proc/{pid}/stat", "rb") as opened:  # noqa: PTH123  # faster
        ticks = int(opened.read().rpartition(b")")[2].split()[19])
    boot_s = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s + ticks / _TICKS_PER_S


def newest_process() -> bytes:
    """Return what differs when a process or thread was started since; always where none counts."""
    return _last_started() if _are_starts_counted() else b"%d" % time.monotonic_ns()


@functools.cache
def _are_starts_counted() -> bool:
    """Whether this /proc counts: a sandbox's or a container's own may not."""
    before = _last_started()
    thread = threading.Thread(name=OUR_THREADS, target=bool)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        os.sched_yield()  # it has ended for Python alone
    return _last_started() != before


def _last_started() -> bytes:
    """Return the id of the process or thread that was started last on this machine (proc(5))."""
    with open("/proc/loadavg", "rb") as opened:  # noqa: PTH123  # faster
        return opened.read().rpartition(b" ")[2]


def read_process(pid: int) -> Process | None:
    """Return a process, None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:  # noqa: PTH123  # faster
            # The name of the program, which comes before, may hold anything.
            fields = opened.read().rpartition(b")")[2].split()
    except OSError:  # it has just ended
        return None
    state, parent, session = fields[0].decode(), int(fields[1]), int(fields[3])
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return Process(state=state, parent=parent, session=session, cpu_s=cpu_s)


def processes_with(variable: str) -> list[int]:
    """Return the other processes whose environment has NAME=VALUE, as all of one launch have."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  # faster
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if variable.encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return [pid for pid in found if pid != os.getpid()]


def has_children() -> bool:
    """Whether this process has a child, ended ones that it did not wait for included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have just ended, or are another user's, get none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def wait_for_end(pid: int, timeout_s: float | None = None) -> bool:
    """Return whether a process has ended in time."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # not every Python, kernel or sandbox has it
        end_s = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        while (found := read_process(pid)) is not None and found.state not in "ZX":
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True
    try:
        return bool(select.select([ended], [], [], timeout_s)[0])
    finally:
        os.close(ended)


def end_with(gate: int, variable: str) -> int:
    """Have this process, and all that it starts, end when the gate, its parent, has ended.

    What it starts is known by a variable of its environment, NAME=VALUE. Returns a pipe to
    a process that outlives this one, and then resumes processes whose ids were written there.
    """
    # Not between the gate's fork and exec: Python's own handlers around it lose a Ctrl-C.
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    process = os.getpid()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setsid()  # what ends the launch's group must not end this one
            prctl(PR_SET_NAME, WATCHER.encode(), 0, 0, 0)
            if os.fork() == 0:  # not a child of the launch, which may wait for all of its children
                _clear_up(process, gate, reader, writer, variable)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(reader)
    os.set_blocking(writer, False)
    return writer


def _clear_up(process: int, gate: int, reader: int, writer: int, variable: str) -> None:
    """Resume what a process has named when it has ended; kill what it started when the gate has."""
    os.close(writer)
    os.closerange(0, 3)  # the gate reads what the process says up to its end
    os.chdir("/")
    wait_for_end(process)
    os.set_blocking(reader, False)
    told = b""
    with contextlib.suppress(BlockingIOError):  # a child of the process still holds the pipe
        while part := os.read(reader, 1 << 16):
            told += part
    processes = list_processes()
    stopped = {int(pid) for pid in told.split()} & processes.keys()
    signal_all([pid for pid in stopped if processes[pid].state == "T"], signal.SIGCONT)
    wait_for_end(gate)  # one that lives kills all that itself, and this process too
    signal_all(processes_with(variable), signal.SIGKILL)


if __name__ == "__main__":
    end_with(int(sys.argv[1]), sys.argv[2])
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and then by what it starts
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(sys.argv[3], sys.argv[3:])
