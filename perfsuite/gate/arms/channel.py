"""The gate's end of the channel, on which two launches take turns and report what they timed.

Each line is a JSON object with a "kind"; decision 0009 lists them.
"""

import contextlib
import json
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from perfsuite.gate.arms.arm import NO_PROGRESS, OTHER_ENDED, Arm, CellRun, Launch, PairPlan, Suite
from perfsuite.gate.arms.loaded import LoadLogReader
from perfsuite.gate.arms.num_rounds import agree_on_iterations, first_num_rounds
from perfsuite.gate.arms.turns import Scheduler
from perfsuite.stats.intervals import trimmed_mean
from perfsuite.system.gpus import open_clocks

_LOOK_S, _MOST_LOOK_S = 0.5, 5.0
# How often, within the time that idle launches may be silent, the gate looks whether they work; how
# much of one processor working ones use at least; and how much longer they may be silent.
_LOOKS = 10
_BUSY_SHARE = 0.1
_BUSY_PATIENCE = 10
# Rounds of an arm that is alone in a cell: what its threads have fetched ahead lasts for a while.
_ALONE_S = 1.0


class Server:
    """The socket, and what was received on it from the `processes` of both arms."""

    def __init__(self, arms: Sequence[Arm], plan: PairPlan, path: Path) -> None:
        self.launches = {arm.name: Launch(arm=arm) for arm in arms}
        self._plan = plan
        self._scheduler = Scheduler(list(self.launches), first=plan.first)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._open = contextlib.ExitStack()
        self._selector = self._open.enter_context(selectors.DefaultSelector())
        self._listener = self._open.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._listener.bind(str(path))
        self._logs = {}
        for arm in arms:
            folders = (arm.top or arm.tree).resolve(), *arm.watched
            self._logs[arm.name] = LoadLogReader(path.with_name(f"{arm.name}.loaded"), folders)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        # Where the answer goes, by arm and kind of message.
        self._waiting: dict[tuple[str, str], socket.socket] = {}
        self._read_clocks = self._open.enter_context(open_clocks())
        self._clocks_mhz: dict[str, list[Sequence[float]]] = {name: [] for name in self.launches}
        self._chosen: list[str] = []
        self._shapes: dict[str, dict[str, Any]] = {}
        self._agreed: dict[str, int] | None = None
        self._agreed_s: float | None = None
        self._ended_s = self._looked_s = self._granted_s = 0.0
        self._finished: set[str] = set()
        # What an arm's own word on a cell lacks, by the arm.
        self._noticed: dict[str, dict[str, Any]] = {name: {} for name in self.launches}
        self._is_over = self._is_further = False

    def close(self) -> None:
        """Close all connections."""
        self._open.close()

    def serve(self) -> None:
        """Answer until both launches have finished, or one cannot go on."""
        patience = Patience(self._plan.timeout_s, self._spent_s)
        while self._finished < self.launches.keys():
            self._look(is_idle=not self._receive(_LOOK_S))
            if self._is_further:
                patience.hear()
                self._is_further = False
            self._notice_ends()
            if (reason := patience.why_over()) is not None and self._plan.is_apart:
                reason += ", also without the other arm"
            elif reason is None and any(launch.failure for launch in self.launches.values()):
                reason = OTHER_ENDED
            if reason is not None:
                for name in self.launches.keys() - self._finished:
                    self.launches[name].failure = self.launches[name].failure or reason
                return

    def _look(self, *, is_idle: bool) -> None:
        """See what processes load unless rounds go on; less often in a long turn."""
        now_s, lasted_s = time.monotonic(), min(_MOST_LOOK_S, self._looked_s - self._granted_s)
        is_due = now_s - max(self._looked_s, self._granted_s) >= max(_LOOK_S, lasted_s)
        if self._agreed is None and (is_idle or is_due):
            for log in self._logs.values():
                log.look()
            self._looked_s = now_s

    def _spent_s(self) -> float:
        total_s = 0.0
        for process in self.processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                for one in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        total_s += sum(one.cpu_times()[:4])
        return total_s

    def _receive(self, wait_s: float) -> bool:
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            peer: _Peer | None = key.data
            if peer is None:
                connection = self._open.enter_context(self._listener.accept()[0])
                self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))
                continue
            if (messages := peer.receive()) is None:
                self._selector.unregister(peer.connection)
                peer.connection.close()
            for message in messages or ():
                self._handle(peer, message)
        return bool(ready)

    def _notice_ends(self) -> None:
        codes = {name: process.poll() for name, process in self.processes.items()}
        if any(codes[name] is not None for name in codes.keys() - self._finished):
            while self._receive(0):  # its last messages may have come meanwhile
                pass
        for name, code in codes.items():
            if code is not None and name not in self._finished:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                self.launches[name].failure = f"its pytest ended early with {how}"
                self._finish(name)

    def _handle(self, peer: "_Peer", message: dict[str, Any]) -> None:
        if (kind := message["kind"]) == "hello":
            peer.arm = message["arm"]
            # Beside another arm, a command that is waited for may itself wait for what that holds.
            self._is_further |= len(self.launches) == 1
            return
        self._is_further = True
        arm, launch = peer.arm, self.launches[peer.arm]
        self._waiting[arm, kind] = peer.connection
        match kind:
            case "collected":
                self._take_suite(arm, message)
            case "enter":
                alone = message["cell"] in self._plan.one_by_one
                self._answer("enter", self._scheduler.enter(arm, alone=alone), {"is_alone": alone})
            case "shape":
                self._shapes[arm] = message
                self._logs[arm].look()  # what it trains with is open now
                self._answer("turn", self._scheduler.agree(arm))
                self._advance()
            case "turn":
                self._answer("turn", self._scheduler.request(arm))
            case "round" | "done":
                self._ended_s = time.monotonic()
                self._clocks_mhz[arm].append(self._read_clocks())
                if kind == "done":
                    self._noticed[arm]["turns_s"] = self._ended_s - self._granted_s
                    self._answer("turn", self._scheduler.end(arm))
            case "noticed":
                self._noticed[arm] |= message["noticed"]
            case "waits":  # of an older perfsuite
                self._noticed[arm]["hides_waits"] = True
            case "left":
                self._take_cell(arm, message)
            case "finished":
                launch.loaded = self._logs[arm].read()
                if launch.suite is None:
                    launch.failure = "its pytest ended before it had collected anything"
                self._finish(arm)

    def _take_suite(self, arm: str, message: dict[str, Any]) -> None:
        launch = self.launches[arm]
        launch.takes_turns = message["takes_turns"]
        if not self._logs[arm].log.exists():
            launch.failure = "it cannot log what it loads; start Python without -S"
        launch.suite = msgspec.convert(message, Suite, dec_hook=lambda kind, text: kind(text))
        suites = {name: one.suite for name, one in self.launches.items() if one.suite is not None}
        if len(suites) == len(self.launches):
            is_enough = any(self._plan.is_enough(log.read()) for log in self._logs.values())
            wanted = launch.suite.cells if self._plan.names is None else self._plan.names
            in_both = [one for one in wanted if all(one in it.cells for it in suites.values())]
            self._chosen = [] if is_enough else in_both
            answer = {"run": self._chosen, "unpinned": sorted(self._plan.unpinned)}
            self._answer("collected", suites, answer)

    def _take_cell(self, arm: str, message: dict[str, Any]) -> None:
        clocks_mhz, self._clocks_mhz[arm] = self._clocks_mhz[arm], []
        # The arm waits meanwhile, so its processes live.
        loaded = self.launches[arm].loaded = self._logs[arm].read()
        run = msgspec.convert(self._noticed[arm] | message, CellRun)
        self.launches[arm].cells[message["cell"]] = replace(
            run,
            alternated_s=0.0 if self._agreed_s is None else self._ended_s - self._agreed_s,
            loaded=loaded,
            # A median would be a multiple of the 15 MHz that a GPU's clock goes by.
            clocks_mhz=tuple(trimmed_mean(one)[0] for one in zip(*clocks_mhz, strict=False)),
        )
        self._noticed[arm].clear()
        self._is_over = self._plan.is_enough(self._logs[arm].read())  # of what outlives the cell
        self._answer("turn", self._scheduler.leave(arm))
        self._advance()

    def _finish(self, arm: str) -> None:
        self._finished.add(arm)
        self._answer("turn", self._scheduler.finish(arm))
        self._advance()

    def _advance(self) -> None:
        """Answer the arms that waited for one that has agreed, left the cell or finished."""
        if arms := self._scheduler.conclude():
            if self._agreed is None:  # else the arm that was in the cell before has set it
                self._agreed = self._agree_on_shape(arms)
            self._agreed_s = self._ended_s = time.monotonic()
            self._answer("shape", arms, self._agreed)
        self._answer("enter", self._scheduler.admit(), {"is_alone": True})
        if arms := self._scheduler.pass_barrier():
            self._agreed = self._agreed_s = None
            self._answer("left", arms, {"is_over": self._is_over})

    def _answer(self, kind: str, arms: Iterable[str], answer: Mapping[str, Any] = {}) -> None:
        for arm in arms:
            if kind in ("enter", "turn"):
                self._granted_s = time.monotonic()
            with contextlib.suppress(OSError):  # the arm may have ended by now
                self._waiting.pop((arm, kind)).sendall(json.dumps(answer).encode() + b"\n")

    def _agree_on_shape(self, arms: Sequence[str]) -> dict[str, int]:
        """Rounds of one length for both arms: a longer round is timed otherwise."""
        cell = next((name for name in self._chosen if name not in self.launches[arms[0]].cells), "")
        if cell in self._plan.agreed:
            return self._plan.agreed[cell]
        shapes = [self._shapes[arm] for arm in arms]
        iteration_s = [shape["iteration_s"] for shape in shapes]
        iterations = agree_on_iterations([shape["iterations"] for shape in shapes], iteration_s)
        round_s = iterations * max(iteration_s)
        # None where an arm does not tell; where one runs after the other, nobody knows both.
        states = [shape.get("collector_state") for shape in shapes]
        is_alone, first_s = cell in self._plan.one_by_one, shapes[0]["first_s"]
        least = first_num_rounds(round_s, max(first_s, _ALONE_S)) if is_alone else 1
        planned = self._plan.num_rounds.get(cell) or first_num_rounds(round_s, first_s)
        agreed = {
            "iterations": iterations,
            "rounds": max(planned, least),
            "counts": cell not in self._plan.uncounted,
            "profiles": self._plan.profiles,
            "alone": is_alone,
            "collecting": len(states) < 2 or (None not in states and states[0] != states[1]),
        }
        for arm in arms:
            self.launches[arm].agreed[cell] = agreed
        return agreed


@dataclass
class Patience:
    """How long launches may be silent: longer while processors work for them, as `spent_s` says.

    What works may be stuck too, as a spinning wait is.
    """

    timeout_s: float
    spent_s: Callable[[], float]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._heard_s = self._looked_s = self._busy_s = self.clock()
        self._spent_before_s = 0.0

    def hear(self) -> None:
        """Start the time again: a launch has sent something."""
        self._heard_s = self._busy_s = self.clock()

    def why_over(self) -> str | None:
        """Return why the launches are ended, None while there is hope."""
        now_s = self.clock()
        if now_s - self._looked_s >= self.timeout_s / _LOOKS:
            spent_s = self.spent_s()
            if spent_s - self._spent_before_s >= _BUSY_SHARE * (now_s - self._looked_s):
                self._busy_s = now_s
            self._looked_s, self._spent_before_s = now_s, spent_s
        if now_s - self._busy_s > self.timeout_s:
            return f"{NO_PROGRESS} {self.timeout_s:.0f} s"
        if now_s - self._heard_s > _BUSY_PATIENCE * self.timeout_s:
            return f"nothing but work for {_BUSY_PATIENCE * self.timeout_s:.0f} s"
        return None


@dataclass
class _Peer:
    """A connection, and the beginning of a line that has not come whole."""

    connection: socket.socket
    arm: str = ""
    _begun: bytes = b""

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that came, None at the end of the connection."""
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = self.connection.recv(1 << 16)
        if not received:
            return None
        *lines, self._begun = (self._begun + received).split(b"\n")
        return [json.loads(line) for line in lines]
