"""The pytest processes that torchrun started, controllers of ranks, as one sees the others.

What one broadcasts, all receive in the same order, so they decide the same from it. A messenger
process beside each controller carries it through torchrun's store, which needs torch.
"""

import contextlib
import os
import pickle
import pkgutil
import signal
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from perfsuite.errors import LostRankError
from perfsuite.ranks import bootstrap
from perfsuite.ranks.forkserver import start_process, start_server
from perfsuite.ranks.torchrun.membership import Membership

# How often a wait checks whether the messenger still lives, beside what wakes it.
_POLL_S = 0.5
# torch's own patience with a store (TCPStore's default timeout).
_ARRIVAL_S = 300.0
# Messengers beat once a second; one on a starved machine may miss many of these.
_SILENCE_S = 20.0
# A messenger leaves at once when it has posted everything.
_LEAVE_S = 5.0
# Topics of `end_phase` and `leave`.
_END, _EXIT, _GONE = "end of the phase", "exit", "gone"
# Loaded by name in a process of its own, because it imports torch.
_MESSENGER = "perfsuite.worker.messenger:serve"
# The phase of broadcasts that concern the whole session.
_SESSION = -1


class MessengerStart(NamedTuple):
    """What a messenger is started with: its controller's place and process, and a log's folder."""

    membership: Membership
    controller: int
    folder: str
    arrival_s: float  # until another one must have come
    silence_s: float


class Peers:
    """All ranks' controllers, this one included.

    They go through phases together; broadcasts of one phase are forgotten in the next. Every method
    that waits for others, and `receive`, raises LostRankError when a rank, its value or the store
    will never come. `phase` counts those that all have ended.
    """

    def __init__(self, membership: Membership, *, silence_s: float = _SILENCE_S) -> None:
        """Begin to look for the others, without waiting; one silent for `silence_s` is gone."""
        self.membership, self.phase = membership, 0
        self._received: dict[tuple[int, str], dict[int, Any]] = defaultdict(dict)
        self._why_broken: str | None = None
        start_server()
        self._folder = bootstrap.make_group_folder()
        start = MessengerStart(
            membership=membership,
            controller=os.getpid(),
            folder=str(self._folder),
            arrival_s=_ARRIVAL_S,
            silence_s=silence_s,
        )
        self._messenger, self._pipe = start_process(enter_messenger, start)

    def sources(self) -> Sequence[Connection | int]:
        """Return what becomes ready when there is something to receive."""
        return [self._pipe, self._messenger.sentinel]

    def broadcast(self, topic: str, value: object) -> None:
        """Send a value to all, this one included, once a topic and phase; it is pickled."""
        self._post(self.phase, topic, value)

    def receive(self) -> None:
        """Take in the broadcasts that have come so far, without waiting."""
        try:
            while self._why_broken is None and self._pipe.poll():
                self._take(self._pipe.recv())
        except (EOFError, ConnectionResetError):
            self._why_broken = "the messenger between the ranks has died"
        if self._why_broken is not None:
            raise LostRankError(self._why_broken)

    def received(self, topic: str) -> dict[int, Any]:
        """Return the values of a topic in this phase by rank, in the order of their arrival."""
        return self._received[self.phase, topic]

    def gather(self, topic: str, value: object) -> list[Any]:
        """Broadcast a value, and return those of all ranks on the topic, in rank order."""
        self.broadcast(topic, value)
        return self._await_all(self.phase, topic)

    def end_phase(self, value: object) -> list[Any]:
        """End the phase together, and return what all ranks give at its end, in rank order."""
        values = self.gather(_END, value)
        self.phase += 1
        for phase, topic in list(self._received):
            if _SESSION < phase < self.phase:
                del self._received[phase, topic]
        return values

    def leave(self, value: object) -> list[Any]:
        """Return what all ranks give at the end of the session; no peer is needed afterwards."""
        self._post(_SESSION, _EXIT, value)
        values = self._await_all(_SESSION, _EXIT)
        self._post(_SESSION, _GONE, None)
        # The first one may keep the store, and others still have to read from it.
        if self.membership.is_first:
            with contextlib.suppress(LostRankError):
                self._await_all(_SESSION, _GONE)
        return values

    def refuse_absent(self, ranks: Iterable[int], heard: Container[int]) -> None:
        """Raise LostRankError if one of `ranks` is not in `heard` and never will be: it went on."""
        ended = self._received[self.phase, _END]
        left = self._received[_SESSION, _EXIT]
        for rank in ranks:
            if rank not in heard and (rank in ended or rank in left):
                what = "has ended its session" if rank in left else "took no part in this test"
                raise LostRankError(f"rank {rank} of {self.membership.world_size} {what}")

    def close(self) -> None:
        """End the messenger, when it has posted everything."""
        self._pipe.close()
        self._messenger.join(_LEAVE_S)
        if self._messenger.exitcode is None:
            self._messenger.kill()
            self._messenger.join()
        bootstrap.remove_group_folder(self._folder)

    def _post(self, phase: int, topic: str, value: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `receive` says why
            self._pipe.send_bytes(pickle.dumps((self.membership.rank, phase, topic, value)))

    def _take(self, message: bytes | str) -> None:
        if isinstance(message, str):  # the last one: why no broadcast will come any more
            self._why_broken = message
            return
        rank, phase, topic, value = pickle.loads(message)
        if phase == _SESSION or phase >= self.phase:
            self._received[phase, topic][rank] = value

    def _await_all(self, phase: int, topic: str) -> list[Any]:
        heard = self._received[phase, topic]
        everyone = range(self.membership.world_size)
        while len(heard) < len(everyone):
            wait(self.sources(), _POLL_S)
            self.receive()
            if phase != _SESSION:
                self.refuse_absent(everyone, heard)
        return [heard[rank] for rank in everyone]


def enter_messenger(start: MessengerStart, pipe: Connection) -> None:
    """Make this process die with its controller, then run the messenger. Target of its process."""
    bootstrap.die_with_controller()
    # torchrun ends whole process groups; a controller that goes on to the end needs its messenger.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    bootstrap.send_output_to(Path(start.folder) / "messenger.log")
    pkgutil.resolve_name(_MESSENGER)(start, pipe)
