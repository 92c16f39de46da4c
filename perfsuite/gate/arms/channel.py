"""The gate's end of the channel, on which two launches take turns and tell what they timed.

Each line is a JSON object with a "kind"; those that wait for an
answer are marked:

    hello {arm}                      first on each connection; a rank opens one of its own
    collected {cells, broken, hidden, takes_turns, root, inifile, pythonpath, python_files} ?
                                     the cells of the arm and what their markers ask, what cannot
                                     be collected, what hides that it is a cell, and the suite's
                                     configuration
                                     -> {"run": [names in order]}
    enter {cell} ?                   stands before a cell -> {} when it may be set up
    shape {iterations, iteration_s, first_s} ?  how long its rounds would be, and how many seconds
                                     of them a first launch is worth
                                     -> {iterations, rounds} for both arms
    turn ?                           wants to run -> {} when the other arm is blocked
    done                             has run
    left {cell, outcome, reason, rounds, record, profile} ?  -> {} when both arms have left it
    modules, finished {modules}      where everything was imported from

Must not know how a launch is started or ended, nor what a verdict is.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from perfsuite.gate.arms.arm import OTHER_ENDED, Arm, CellRun, Choose, Launch, PairPlan, Suite
from perfsuite.gate.arms.num_rounds import agree_on_iterations, first_num_rounds
from perfsuite.gate.arms.turns import Scheduler

_LOOK_S = 0.5


class Server:
    """The socket, and what was said on it."""

    def __init__(self, arms: Sequence[Arm], plan: PairPlan, choose: Choose, path: Path) -> None:
        self.launches = {arm.name: Launch(arm=arm) for arm in arms}
        self._plan = plan
        self._choose = choose
        self._referee = Scheduler(list(self.launches), first=plan.first)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._asking: dict[tuple[str, str], socket.socket] = {}
        self._chosen: list[str] = []
        self._shapes: dict[str, dict[str, Any]] = {}
        self._agreed: dict[str, int] | None = None
        self._agreed_s: float | None = None
        self._ended_s = 0.0
        self._finished: set[str] = set()

    def __enter__(self) -> Server:
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
                self._give_up(OTHER_ENDED)
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
        # Where the answer goes, to those that wait for one.
        self._asking[peer.arm, kind] = peer.connection
        handle: dict[str, Callable[[str, dict[str, Any]], None]] = {
            "collected": self._take_suite,
            "enter": self._enter,
            "shape": self._take_shape,
            "turn": lambda arm, _: self._answer(self._referee.want(arm)),
            "done": self._end_rounds,
            "left": self._take_cell,
            "modules": self._take_modules,
            "finished": self._finish,
        }
        handle[kind](peer.arm, message)

    def _take_suite(self, arm: str, message: dict[str, Any]) -> None:
        launch = self.launches[arm]
        launch.takes_turns = message["takes_turns"]
        launch.suite = Suite(
            cells=message["cells"],
            root=Path(message["root"]),
            inifile=None if message["inifile"] is None else Path(message["inifile"]),
            pythonpath=tuple(map(Path, message["pythonpath"])),
            python_files=tuple(message["python_files"]),
            broken=tuple(message["broken"]),
            hidden=tuple(message["hidden"]),
        )
        launch.failure = "; ".join(launch.suite.broken) or None
        self._answer_collected()

    def _enter(self, arm: str, message: dict[str, Any]) -> None:
        alone = message["cell"] in self._plan.one_by_one
        self._admit(self._referee.enter(arm, alone=alone))

    def _take_shape(self, arm: str, message: dict[str, Any]) -> None:
        self._shapes[arm] = message
        self._answer(self._referee.agree(arm))
        self._answer_shape()

    def _end_rounds(self, arm: str, _: dict[str, Any]) -> None:
        self._ended_s = time.monotonic()
        self._answer(self._referee.end(arm))

    def _take_cell(self, arm: str, message: dict[str, Any]) -> None:
        self.launches[arm].cells[message["cell"]] = CellRun(
            outcome=message["outcome"],
            reason=message["reason"],
            rounds_s=tuple(message["rounds"]),
            record=message["record"],
            alternated_s=0.0 if self._agreed_s is None else self._ended_s - self._agreed_s,
            profile=tuple(map(tuple, message["profile"])),
        )
        self._answer(self._referee.leave(arm))
        self._answer_shape()
        self._admit(self._referee.open_door())
        self._open_border()

    def _take_modules(self, arm: str, message: dict[str, Any]) -> None:
        self.launches[arm].modules |= message["modules"]

    def _finish(self, arm: str, message: dict[str, Any]) -> None:
        self._take_modules(arm, message)
        self._finished.add(arm)
        launch = self.launches[arm]
        if launch.suite is None:
            launch.failure = "its pytest ended before it had collected anything"
        self._let_go(arm)

    def _let_go(self, arm: str) -> None:
        self._answer(self._referee.go(arm))
        self._answer_shape()
        self._admit(self._referee.open_door())
        self._open_border()

    def _admit(self, arms: Sequence[str]) -> None:
        for arm in arms:
            _send(self._asking.pop((arm, "enter")), {})

    def _open_border(self) -> None:
        for arm in self._referee.cross_border():
            self._agreed = self._agreed_s = None
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
        self._chosen = list(self._choose(found))
        for name in found:
            _send(self._asking.pop((name, "collected")), {"run": self._chosen})

    def _answer_shape(self) -> None:
        """Let both arms run rounds of one length: one that is longer is timed otherwise."""
        arms = self._referee.conclude()
        if not arms:
            return
        if self._agreed is None:  # else the arm that was in the cell before has settled it
            self._agreed = self._settle(arms)
        self._agreed_s = self._ended_s = time.monotonic()
        for arm in arms:
            _send(self._asking.pop((arm, "shape")), self._agreed)

    def _settle(self, arms: Sequence[str]) -> dict[str, int]:
        shapes = [self._shapes[arm] for arm in arms]
        iteration_s = [shape["iteration_s"] for shape in shapes]
        iterations = agree_on_iterations([shape["iterations"] for shape in shapes], iteration_s)
        round_s = iterations * max(iteration_s)
        done = self.launches[arms[0]].cells
        cell = next((name for name in self._chosen if name not in done), "")
        rounds = self._plan.num_rounds.get(cell) or first_num_rounds(round_s, shapes[0]["first_s"])
        return {"iterations": iterations, "rounds": rounds}


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
