"""A rank's turns: a round waits until the other arm of a comparison is blocked."""

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from perfsuite.ranks.messages import TurnChannel

# Duration of all rounds in a first launch: starting ranks costs as much.
_FIRST_S = 1.0
# How often a rank that waits for its turn shows that it is not stuck.
_LOOK_S = 1.0


class Agreed(NamedTuple):
    """A round's iterations, rounds, and whether both arms count and profile after them.

    An arm that is `alone` in the cell keeps its turn from round to round: in a pause its threads
    would fetch ahead what later rounds then need not wait for.
    """

    iterations: int
    rounds: int
    counts: bool = True
    profiles: bool = True
    collecting: bool = False  # Python's collector runs in rounds, as each arm has set it
    alone: bool = False


class Turns:
    """The turns of one arm."""

    def __init__(self, channel: TurnChannel, on_wait: Callable[[], None] = lambda: None) -> None:
        """Connect to the gate; `on_wait` is called again and again while it does not answer."""
        self._on_wait = on_wait
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(channel.path)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._arm = channel.arm
        self.greet()

    def greet(self) -> None:
        """Say whose it is: at first, and again so that the gate does not take a wait for a hang."""
        self._send(kind="hello", arm=self._arm)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold the turn: enter when it is this arm's, and hand it on at the end."""
        self._send(kind="turn")
        self._receive()
        yield
        self._send(kind="done")

    def end_round(self) -> None:
        """Say that a round is over, and keep the turn."""
        self._send(kind="round")

    def tell(self, **noticed: object) -> None:
        """Say what the gate cannot see: fields of its `CellRun`."""
        self._send(kind="noticed", noticed=noticed)

    def agree(self, num_iterations: int, iteration_s: float, collector: Sequence[float]) -> Agreed:
        """Return what both arms run, where this one alone would run so many, of so many seconds."""
        shape = {"iterations": num_iterations, "iteration_s": iteration_s, "first_s": _FIRST_S}
        self._send(kind="shape", **shape, collector_state=[*collector])
        answer = json.loads(self._receive())
        # A gate that does not say whether they count and profile has them do both.
        return Agreed(**{name: answer[name] for name in Agreed._fields if name in answer})

    def _receive(self) -> str:
        while not wait([self._socket], _LOOK_S):
            self._on_wait()
        if not (line := self._lines.readline()):
            os._exit(1)  # the gate has ended, and started this process
        return line

    def _send(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")
