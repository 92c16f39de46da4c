"""The ranks of a command: found, measured and ended. Runs in the controller.

The launcher is the user's own. A rank is a process of the command whose optimizer steps:
there a hook connects to the socket of this group, and gets the job that any rank gets.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import psutil

from perfsuite.errors import PerfsuiteError, SettingError, WorkloadError
from perfsuite.ranks import bootstrap
from perfsuite.ranks.assignments import all_assignments
from perfsuite.ranks.command import faults
from perfsuite.ranks.command.hooked import sitecustomize as hook
from perfsuite.ranks.failures import Died
from perfsuite.ranks.group import GRACE_S, POLL_S, REAPED_S, RankGroup
from perfsuite.ranks.messages import Failed, GroupRequest, Joined, RankStart, Reply
from perfsuite.ranks.turns import Turns
from perfsuite.system import background
from perfsuite.system.apart import end_all, left_behind, start_apart
from perfsuite.units import counted

# Before the first step a command loads data and compiles.
_PATIENCE = 10
# A process that computes with torch, and without the hook, may prepare for one that trains.
_UNHOOKED_S, _LOOK_S = 60.0, 5.0
# Bytes of a Unix socket's path (unix(7)).
_LONGEST_SOCKET = 107


@dataclass(frozen=True, kw_only=True)
class CommandLaunch:
    """A command of a cell; "{out}" in a word or a variable is a folder of this launch alone."""

    name: str
    words: tuple[str, ...]
    folder: Path
    # The session's own variables, and those that the user gives to the command alone.
    inherited: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    environment: Mapping[str, str] = field(default_factory=dict)

    def variables(self, out: Path) -> dict[str, str]:
        """Return the environment of its processes."""
        return {
            "WANDB_MODE": "disabled",
            "MASTER_PORT": str(_free_port()),
            "PET_MASTER_PORT": str(_free_port()),
            "PERFSUITE_LAUNCH": "head-0",
            **self.inherited,
            "PERFSUITE_OUT": str(out),
            **{name: text.replace("{out}", str(out)) for name, text in self.environment.items()},
        }

    def program(self, variables: Mapping[str, str]) -> str:
        """Return the path of its program; raises a SettingError where there is none."""
        name = self.words[0]
        place = str(self.folder / name) if "/" in name else name
        if (found := shutil.which(place, path=variables.get("PATH", os.defpath))) is None:
            wrong = f"the command begins with {name!r}, which is no program in {self.folder}"
            raise SettingError(f"{wrong} or on PATH; name one that can be run")
        return str(Path(found).absolute())


def run_command(request: GroupRequest, launch: CommandLaunch) -> list[Reply]:
    """Run a command until its ranks have done a job, and return their replies in rank order.

    No process and no temporary file of it stays, but what it wrote elsewhere. Raises what
    `run_group` does, a SettingError without its program, a WorkloadError without a first step.
    """
    with CommandGroup(request, launch) as group:
        return group.run()


class CommandGroup(RankGroup):
    """A running command; a context manager that leaves nothing behind."""

    def __init__(
        self, request: GroupRequest, launch: CommandLaunch, *, has_hook: bool = True
    ) -> None:
        """Start the command, with the hook or as if it ran by itself."""
        self._ranks = ()
        self._request, self._name = request, launch.name
        self._has_hook = has_hook
        self._gate = Turns(request.policy.turns) if request.policy.turns is not None else None
        self._joined: dict[int, Joined] = {}
        self._progress, self._since_s = ("", 0), time.monotonic()
        self._looked_s = self._since_s
        self._launch(request, partial(self._start, launch))

    def _start(self, launch: CommandLaunch) -> None:
        self.out = self._folder / "out"
        self.out.mkdir()
        variables = launch.variables(self.out)
        program = launch.program(variables)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._cleanup.callback(self._listener.close)
        channel = str(self._folder / "ranks")
        if len(os.fsencode(channel)) > _LONGEST_SOCKET:
            folder = os.open(self._folder, os.O_PATH)
            self._cleanup.callback(os.close, folder)
            channel = f"/proc/{os.getpid()}/fd/{folder}/ranks"
        self._listener.bind(channel)
        self._listener.listen()
        self._variable = f"{hook.CHANNEL}={channel}"
        variables[hook.CHANNEL] = channel
        # Beside a path of its own: the launch's has the log of what is loaded, and its tree.
        paths = [hook.FOLDER if self._has_hook else None]
        paths += [one.get("PYTHONPATH") for one in (variables, launch.inherited)]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(paths)))
        words = [word.replace("{out}", str(self.out)) for word in launch.words[1:]]
        runner = [sys.executable, "-P", background.__file__, str(os.getpid()), self._variable]
        self._log = self._folder / "output.log"
        self._process = start_apart(
            [*runner, program, *words], folder=launch.folder, variables=variables, output=self._log
        )
        self._cleanup.callback(self._end_processes)

    def run(self) -> list[Reply]:
        """Return the replies of all ranks; see `run_command`."""
        try:
            self._gather()
            self._begin()
            while (replies := self.poll(POLL_S)) is None:
                if wait([self._listener], 0):  # one rank too many
                    self._accept()
                if self._process.poll() is not None and (replies := self.poll(0)) is None:
                    raise self._ended()
            if any(self.position(rank).phase == "exit" for rank in self._ranks):
                self._wait_for_end()
                if self._process.returncode:
                    raise self._ended()
            return replies
        except PerfsuiteError:
            self._show_logs()
            raise

    def run_to_end(self) -> str:
        """Return what a command without the hook printed, when it has ended by itself."""
        try:
            while self._process.poll() is None:
                time.sleep(POLL_S)
                self._lose_patience("it did not end")
            if self._process.returncode or self._left_behind():
                raise self._ended()
        finally:
            self._show_logs()
        return self._output

    def _gather(self) -> None:
        while len(self._joined) < self._world_size:
            for source in wait([self._listener, *self._pipes.values()], POLL_S):
                if source is self._listener:
                    self._accept()
                else:  # a rank died
                    self._wait_for_end()
                    raise self._ended()
            if self._process.poll() is not None:
                raise self._ended()
            num_joined = len(self._joined)
            only = f"only {num_joined} of its {self._world_size} ranks took a first step"
            self._lose_patience(only if num_joined else "no optimizer stepped in it")
            if time.monotonic() - self._looked_s > _LOOK_S:
                self._look_for_torch()
                self._looked_s = time.monotonic()

    def _look_for_torch(self) -> None:
        """Raise where a process has long computed with torch, and none has loaded it as told."""
        if (self._folder / hook.LOADED).exists():
            return
        for pid in background.processes_with(self._variable):
            with contextlib.suppress(OSError):  # it has ended
                process = background.read_process(pid)
                has_computed = process is not None and process.cpu_s > _UNHOOKED_S
                now_s = time.clock_gettime(time.CLOCK_REALTIME)  # by the clock of its start
                has_computed &= now_s - background.read_start_s(pid) > _UNHOOKED_S
                if has_computed and b"libtorch" in Path(f"/proc/{pid}/maps").read_bytes():
                    found = f"{self._name}: process {pid} computes with torch and without"
                    raise WorkloadError(f"{found} {faults.HOOK_ADVICE}")

    def _lose_patience(self, what: str) -> None:
        """Raise where the command has neither printed anything nor come further for too long."""
        if self._gate is not None:
            self._gate.greet()
        progress = what, self._log.stat().st_size
        if progress != self._progress:
            self._progress, self._since_s = progress, time.monotonic()
        most_s = _PATIENCE * self._policy.timeout_s
        if time.monotonic() - self._since_s > most_s:
            raise WorkloadError(
                f"{self._name}: {what}, and it printed nothing, for {most_s:g} s (ten times "
                f"--perf-timeout); its last words: {faults.last_words(self._output)}"
            )

    def _accept(self) -> None:
        pipe: Connection[Any, Any] = Connection(self._listener.accept()[0].detach())
        with contextlib.suppress(EOFError, OSError, psutil.NoSuchProcess):  # it died meanwhile
            while not pipe.poll(POLL_S):
                self._lose_patience("a rank has connected and not said which it is")
            joined: Joined = pipe.recv()
            process = psutil.Process(joined.process)
            rank = joined.rank
            first = self._joined.setdefault(rank, joined)
            if first is not joined or rank >= joined.world_size:
                raise WorkloadError(
                    f"{self._name}: processes {first.process} and {joined.process} both take steps "
                    f"as rank {rank} of {joined.world_size}; start the ranks with torchrun, "
                    "or set RANK and WORLD_SIZE in each"
                )
            self._world_size = joined.world_size
            self._pipes[rank] = pipe
            self._running[rank] = process

    def _begin(self) -> None:
        self._ranks = tuple(sorted(self._joined))
        self._open_board()
        processes = frozenset(joined.process for joined in self._joined.values())
        assignments = all_assignments(self._world_size, device="cpu", num_gpus=0)
        for rank, joined in self._joined.items():
            policy = self._policy._replace(device=joined.device)
            request = self._request._replace(world_size=self._world_size, policy=policy)
            start = RankStart(
                request=request,
                assignment=assignments[rank],
                folder=str(self._folder),
                core=None,
                cores=tuple(sorted(os.sched_getaffinity(0))),
                processes=processes,
            )
            with contextlib.suppress(OSError):  # it died meanwhile, as is seen next
                self._pipes[rank].send(start)

    def sources(self) -> Mapping[Connection | int, int]:
        """Return the pipes, which end with their rank."""
        return {self._pipes[rank]: rank for rank in self._waiting()}

    def _reply_of(self, rank: int) -> Reply | Died:
        try:
            return cast(Reply, self._pipes[rank].recv())
        except (EOFError, ConnectionResetError):
            at_s = time.monotonic()
            self._wait_for_end()
            return faults.read_end(self._joined[rank], self._process, self._output, at_s=at_s)

    def _raise_first_failure(self) -> None:
        at = {rank: self.position(rank) for rank in self._ranks}
        # Torch's threads may outlive Python at an exit, and a launcher then ends the other ranks.
        ended = [n for n in self._replies if at[n].phase == "exit" and self._follows(n, "SIGABRT")]
        others = [n for n in at if at[n].phase != "exit" and self._follows(n, "SIGTERM")]
        if ended and others:
            raise WorkloadError(
                f"{self._name}: rank {ended[0]} ended by itself after "
                f"{counted(at[ended[0]].step, 'step')}, and rank {others[0]}, which had taken "
                f"{at[others[0]].step}, went on; give all ranks equally many steps"
            )
        super()._raise_first_failure()

    def _follows(self, rank: int, name: str) -> bool:
        """Whether a rank runs, lost another, or was ended by this signal."""
        reply = self._replies.get(rank)
        if isinstance(reply, Died):
            return reply.exit_code == -signal.Signals[name]
        return reply is None or (isinstance(reply, Failed) and reply.peer is not None)

    def where_it_hangs(self, rank: int) -> tuple[str, ...]:
        """Say whether a rank is stopped: its signals are the command's own."""
        return bootstrap.why_stopped(self._joined[rank].process)

    def _ended(self) -> PerfsuiteError:
        if (exit_code := self._process.returncode) == 0 and (left := self._left_behind()):
            return WorkloadError(
                f"{self._name}: the command ended with exit code 0 and left "
                f"{counted(len(left), 'process')} running (process {left[0]}), ended by now; "
                "keep it in the foreground: in a shell script, end with 'wait'"
            )
        has_hook = (self._folder / hook.LOADED).exists() if self._has_hook else None
        num_steps = max((self.position(rank).step for rank in self._ranks), default=None)
        return faults.ended_error(self._name, exit_code, num_steps, self._output, has_hook)

    def _left_behind(self) -> Sequence[int]:
        """The processes that live on after the launcher has ended, and not only for a moment."""
        deadline_s = time.monotonic() + REAPED_S
        while (left := left_behind(0, self._variable)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return left

    def _wait_for_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)

    @property
    def _output(self) -> str:
        return self._log.read_text(errors="replace")

    def _log_lines(self, rank: int) -> tuple[str, ...]:
        return ()  # its last words are in the message

    def _show_logs(self) -> None:
        print(self._output, end="")

    def _end_processes(self) -> None:
        for pipe in self._pipes.values():
            pipe.close()
        if self._ranks and not self._waiting():
            self._wait_for_end()
        deadline_s = time.monotonic() + REAPED_S
        while end_all(self._process, self._variable) and time.monotonic() < deadline_s:
            time.sleep(POLL_S / 4)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
