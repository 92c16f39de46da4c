"""Pairs of launches: one fresh pytest of each arm, alive together, taking turns round by round.

The gate's end of the channel. Each line is a JSON object with a "kind"; those that wait for an
answer are marked:

    hello {arm}                      first on each connection; a rank opens one of its own
    collected {cells, broken, takes_turns, root, inifile, pythonpath, python_files} ?
                                     the cells of the arm and what their markers ask, what cannot
                                     be collected, and the suite's configuration
                                     -> {"run": [names in order]}
    turn ?                           wants to run -> {} when the other arm is blocked
    done                             has run
    left {cell, outcome, reason, rounds, record, profile} ?  -> {} when both arms have left it
    modules, finished {modules}      where everything was imported from

Must not know what a verdict is.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfsuite.gate.turns import Referee

_ARM_PLUGIN = Path(__file__).with_name("arm_plugin.py")
_PLUGIN_NAME = "perfsuite_arm"
_LOOK_S = 0.5
_GRACE_S = 3.0
_NUM_LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of the comparison.

    Attributes:
        name: "base" or "head".
        tree: Where its launches run.
        import_roots: Folders that come first on their module path.
        pytest_arguments: What pytest is called with, paths included.
        python: The interpreter.
        environment: Variables that this arm alone has.
    """

    name: str
    tree: Path
    import_roots: tuple[Path, ...]
    pytest_arguments: tuple[str, ...]
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """What one launch made of a cell.

    Attributes:
        outcome: pytest's: "passed", "failed" or "skipped".
        reason: Why it did not pass.
        rounds_s: Seconds of an iteration, round by round; none where nothing was timed.
        record: What perfsuite kept of it, unchecked; None for a suite without perfsuite.
        profile: (function, calls, own seconds) of an iteration, where the plan profiles.
    """

    outcome: str
    reason: str | None
    rounds_s: tuple[float, ...]
    record: dict[str, Any] | None
    profile: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What an arm has collected.

    Attributes:
        cells: What the markers of each cell ask, unparsed.
        root: pytest's rootdir.
        inifile: Its configuration.
        pythonpath: Its ini value, absolute.
        python_files: Its ini value.
        broken: Which files cannot be collected, and why; pytest runs no other either.
    """

    cells: Mapping[str, Mapping[str, Any]]
    root: Path
    inifile: Path | None
    pythonpath: tuple[Path, ...]
    python_files: tuple[str, ...]
    broken: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Launch:
    """One launch, as far as it has come.

    Attributes:
        suite: What the arm has collected; None until it has told.
        takes_turns: Whether the arm's perfsuite, if it has one, can take turns.
        cells: What became of those that were run.
        modules: The file of each top-level module.
        failure: Why the launch told less than it should; None for a whole one.
    """

    arm: Arm
    suite: Suite | None = None
    takes_turns: bool = True
    cells: dict[str, CellRun] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    failure: str | None = None


Choose = Callable[[Mapping[str, Suite]], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """How one pair is run.

    Attributes:
        number: Of the pair, from 1.
        first: The arm that runs the first round of each cell.
        hash_seed: Of both interpreters.
        core: The processor that cells of one thread share.
        timeout_s: Without any message for so long, an arm is stuck.
        profiles: Whether to profile each cell once more after its rounds.
    """

    number: int
    first: str
    hash_seed: int
    core: int
    timeout_s: float
    profiles: bool = False


def run_pair(
    arms: Sequence[Arm], plan: PairPlan, *, choose: Choose, scratch: Path
) -> dict[str, Launch]:
    """Run one launch of each arm, and return what each told, by the arm's name.

    Whatever happens, no process of a launch stays.

    Args:
        arms: Both sides.
        plan: How.
        choose: From what each arm has collected, the cells to run in both, in order.
        scratch: An empty folder for the socket, logs and temporary files.
    """
    shutil.copyfile(_ARM_PLUGIN, scratch / f"{_PLUGIN_NAME}.py")
    with (
        contextlib.ExitStack() as processes,
        # Closed before they are ended: an arm that waits for an answer then goes by itself.
        _Server(arms, plan, choose, scratch / "channel") as server,
    ):
        for arm in arms:
            server.watch(arm.name, processes.enter_context(_process(arm, plan, scratch)))
        server.serve()
    for name, launch in server.launches.items():
        if launch.failure is not None:
            launch.failure += _last_lines(scratch / f"{name}.log")
    return server.launches


@contextmanager
def _process(arm: Arm, plan: PairPlan, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running launch, ended with all that it started."""
    temporary = scratch / f"{arm.name}-tmp"
    temporary.mkdir()
    variables = {**os.environ, **arm.environment}
    roots = [str(root) for root in (scratch, *arm.import_roots)]
    environment = {
        **variables,
        "PYTHONPATH": os.pathsep.join(filter(None, [*roots, variables.get("PYTHONPATH")])),
        "PYTHONHASHSEED": str(plan.hash_seed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(temporary),
        "PERFSUITE_ARM_CHANNEL": str(scratch / "channel"),
        "PERFSUITE_ARM_NAME": arm.name,
        "PERFSUITE_ARM_CORE": str(plan.core),
        **({"PERFSUITE_ARM_PROFILES": "1"} if plan.profiles else {}),
    }
    command = [arm.python, "-m", "pytest", "-p", _PLUGIN_NAME, *arm.pytest_arguments]
    command += ["-o", f"cache_dir={temporary / 'cache'}"]
    with (scratch / f"{arm.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=arm.tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches the gate alone, which decides what to do with it.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait a little for a launch that is finishing, then end its whole group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Server:
    """The socket, and what was said on it."""

    def __init__(self, arms: Sequence[Arm], plan: PairPlan, choose: Choose, path: Path) -> None:
        self.launches = {arm.name: Launch(arm=arm) for arm in arms}
        self._plan = plan
        self._choose = choose
        self._referee = Referee(list(self.launches), first=plan.first)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._asking: dict[tuple[str, str], socket.socket] = {}
        self._finished: set[str] = set()

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets, all of them
        self._selector.close()

    def watch(self, arm: str, process: subprocess.Popen[bytes]) -> None:
        """Notice when the arm's process ends."""
        self._processes[arm] = process

    def serve(self) -> None:
        """Answer until both launches have finished, or one cannot go on."""
        last_heard_s = time.monotonic()
        while self._finished < self.launches.keys():
            if self._listen(_LOOK_S):
                last_heard_s = time.monotonic()
            self._notice_ends()
            if time.monotonic() - last_heard_s > self._plan.timeout_s:
                self._give_up(f"no progress for {self._plan.timeout_s:.0f} s")
                return
            if any(launch.failure for launch in self.launches.values()):
                self._give_up("the other arm ended early")
                return

    def _listen(self, wait_s: float) -> bool:
        """Take in what is said within the time; return whether anything was."""
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            if key.data is None:
                connection, _ = self._listener.accept()
                self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))
            else:
                self._hear(key.data)
        return bool(ready)

    def _notice_ends(self) -> None:
        codes = {name: process.poll() for name, process in self._processes.items()}
        if any(codes[name] is not None for name in codes.keys() - self._finished):
            while self._listen(0):  # its last words may have come since
                pass
        for name, code in codes.items():
            if code is not None and name not in self._finished:
                self._finished.add(name)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                self.launches[name].failure = f"its pytest ended early with {how}"
                self._let_go(name)

    def _give_up(self, reason: str) -> None:
        for name in self.launches.keys() - self._finished:
            launch = self.launches[name]
            launch.failure = launch.failure or reason

    def _hear(self, peer: _Peer) -> None:
        messages = peer.receive()
        if messages is None:
            self._selector.unregister(peer.connection)
            peer.connection.close()
            return
        for message in messages:
            self._handle(peer, message)

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "hello":
            peer.arm = message["arm"]
            return
        arm, launch = peer.arm, self.launches[peer.arm]
        if kind == "collected":
            launch.takes_turns = message["takes_turns"]
            launch.suite = Suite(
                cells=message["cells"],
                root=Path(message["root"]),
                inifile=None if message["inifile"] is None else Path(message["inifile"]),
                pythonpath=tuple(map(Path, message["pythonpath"])),
                python_files=tuple(message["python_files"]),
                broken=tuple(message["broken"]),
            )
            launch.failure = "; ".join(launch.suite.broken) or None
            self._asking[arm, "collected"] = peer.connection
            self._answer_collected()
        elif kind == "turn":
            self._asking[arm, "turn"] = peer.connection
            self._answer(self._referee.want(arm))
        elif kind == "done":
            self._answer(self._referee.end(arm))
        elif kind == "left":
            launch.cells[message["cell"]] = CellRun(
                outcome=message["outcome"],
                reason=message["reason"],
                rounds_s=tuple(message["rounds"]),
                record=message["record"],
                profile=tuple(map(tuple, message["profile"])),
            )
            self._asking[arm, "left"] = peer.connection
            self._answer(self._referee.leave(arm))
            self._open_border()
        else:  # modules, finished
            launch.modules |= message["modules"]
            if kind == "finished":
                self._finished.add(arm)
                if launch.suite is None:
                    launch.failure = "its pytest ended before it had collected anything"
                self._let_go(arm)

    def _let_go(self, arm: str) -> None:
        self._answer(self._referee.go(arm))
        self._open_border()

    def _open_border(self) -> None:
        for arm in self._referee.cross_border():
            _send(self._asking.pop((arm, "left")), {})

    def _answer(self, arms: Sequence[str]) -> None:
        for arm in arms:
            _send(self._asking.pop((arm, "turn")), {})

    def _answer_collected(self) -> None:
        found = {
            name: launch.suite for name, launch in self.launches.items() if launch.suite is not None
        }
        if len(found) < len(self.launches):
            return
        chosen = list(self._choose(found))
        for name in found:
            _send(self._asking.pop((name, "collected")), {"run": chosen})


class _Peer:
    """A connection, and the beginning of a line that has not come whole."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.arm = ""
        self._begun = b""

    def receive(self) -> list[dict[str, Any]] | None:
        """Return what was said, None at the end of the connection."""
        try:
            received = self.connection.recv(1 << 16)
        except ConnectionResetError:
            return None
        if not received:
            return None
        *lines, self._begun = (self._begun + received).split(b"\n")
        return [json.loads(line) for line in lines]


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # who asked may be gone by now
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_NUM_LOG_LINES:]
    return "".join(f"\n  | {line}" for line in lines)
