"""A rank's turns: a round waits until the other arm of a comparison is blocked.

Runs in the first rank of a group, for all of them: its end of the channel that the gate opens.
"""

from __future__ import annotations

import datetime
import json
import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from perfsuite.ranks.messages import RankStart, TurnChannel
from perfsuite.worker.measure.clock import largest_over_ranks, start_together
from perfsuite.worker.store import prefer_loopback

# Duration of all rounds in a first launch: starting ranks costs as much.
_FIRST_S = 1.0
# How often a rank that waits for its turn shows that it is not stuck.
_LOOK_S = 1.0
# Ranks that wait for the first one may wait long; the controller ends them where it has ended.
_PATIENCE = datetime.timedelta(days=1)


class Agreed(NamedTuple):
    """What both arms run; a gate that does not say whether they count or profile has them do it.

    Attributes:
        iterations: Of a round.
        rounds: As many as the gate wants.
        counts: Whether an iteration is counted after the rounds.
        profiles: Whether its operators are profiled.
    """

    iterations: int
    rounds: int
    counts: bool = True
    profiles: bool = True


class Turns:
    """The turns of one arm."""

    def __init__(self, channel: TurnChannel, on_wait: Callable[[], None]) -> None:
        """Connect to the gate; `on_wait` is called again and again while it does not answer."""
        self._on_wait = on_wait
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(channel.path)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._send(kind="hello", arm=channel.arm)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold the turn: enter when it is this arm's, and hand it on at the end."""
        self._send(kind="turn")
        self._receive()
        yield
        self._send(kind="done")

    def agree(self, num_iterations: int, iteration_s: float) -> Agreed:
        """Return what both arms run.

        `num_iterations` is what this arm alone would run, `iteration_s` the seconds of one.
        """
        self._send(
            kind="shape", iterations=num_iterations, iteration_s=iteration_s, first_s=_FIRST_S
        )
        answer = json.loads(self._receive())
        return Agreed(**{name: answer.get(name, True) for name in Agreed._fields})

    def _receive(self) -> str:
        while not select.select([self._socket], [], [], _LOOK_S)[0]:
            self._on_wait()
        line = self._lines.readline()
        if not line:
            os._exit(1)  # the gate has ended, and started this process
        return line

    def _send(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


class ArmTurns:
    """The turns of all ranks of one arm: the first asks the gate, and the others wait for it.

    Attributes:
        are_needed: Whether there is another arm.
    """

    def __init__(self, start: RankStart, on_wait: Callable[[], None]) -> None:
        channel = start.request.policy.turns
        self.are_needed = channel is not None
        self._first = Turns(channel, on_wait) if channel is not None and start.rank == 0 else None
        self._group: dist.ProcessGroup | None = None
        # A barrier of NCCL is a kernel that spins until the last rank comes, on the very GPUs that
        # the other arm is timed on. One of gloo waits on the host.
        if self.are_needed and start.request.needs_group and start.assignment.backend == "nccl":
            prefer_loopback(start)
            group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
            self._group = group

    @contextmanager
    def take(self, meet: Callable[[], None] = start_together) -> Iterator[None]:
        """Hold the turn on all ranks, which meet before and after it."""
        if not self.are_needed:
            yield
            return
        if self._group is not None:
            meet = partial(start_together, self._group)
        with nullcontext() if self._first is None else self._first.take():
            # No rank is at work before the first has the turn, or after the other arm may begin.
            meet()
            yield
            meet()

    def agree(
        self, num_iterations: int, iteration_s: float, largest: Callable[[list[float]], list[float]]
    ) -> Agreed:
        """Return what all ranks of both arms run; `largest` is taken over the ranks."""
        told = [0.0] * len(Agreed._fields)
        if self._first is not None:
            told = [*map(float, self._first.agree(num_iterations, iteration_s))]
        told = self.largest(told, largest)
        return Agreed(int(told[0]), int(told[1]), *map(bool, told[2:]))

    def largest(
        self, values: list[float], largest: Callable[[list[float]], list[float]]
    ) -> list[float]:
        """Return the largest of each value over the ranks, as `largest` does, and spin nowhere."""
        if self._group is None:
            return largest(values)
        return largest_over_ranks(values, torch.device("cpu"), self._group)
