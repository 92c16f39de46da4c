"""The pytest processes that torchrun started, as one of them sees the others.

What one says, all hear, in the same order; so what is decided from it is the same on all. Must not
know what is said, and imports no torch: a messenger carries it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from perfsuite.errors import LostRankError
from perfsuite.ranks import bootstrap
from perfsuite.ranks.forkserver import start_process
from perfsuite.ranks.torchrun.inbox import Letter, Lost, MessengerStart
from perfsuite.ranks.torchrun.membership import Membership

# How often a wait looks whether the messenger still lives, beside what wakes it.
_LOOK_S = 0.5
# torch's own patience with a store (TCPStore's default timeout).
_ARRIVAL_S = 300.0
# Messengers beat once a second; one on a starved machine may miss many of these.
_SILENCE_S = 20.0
# A messenger leaves at once when it has posted what it was given.
_LEAVE_S = 5.0
# Topics of `end_phase` and `leave`.
_END, _EXIT, _GONE = "end of the phase", "exit", "gone"
# Loaded by name in a process of its own, because it imports torch.
_MESSENGER = "perfsuite.worker.messenger:serve"
# In place of a phase, for what is said of the whole session.
_SESSION = -1


class Peers:
    """All ranks' controllers, this one included.

    They go through phases together; what is said in a phase means nothing in the next.

    Attributes:
        membership: This one's place among them.
        phase: How many phases all have ended.
    """

    def __init__(self, membership: Membership, *, silence_s: float = _SILENCE_S) -> None:
        """Begin to look for the others; returns without waiting for them.

        Args:
            membership: This one's place.
            silence_s: How long another may be silent before it counts as gone.
        """
        self.membership = membership
        self.phase = 0
        self._said: dict[tuple[int, str], dict[int, Any]] = defaultdict(dict)
        self._lost: str | None = None
        self._folder = bootstrap.make_group_folder()
        self._messenger, self._pipe = start_process(
            enter_messenger,
            MessengerStart(
                entry=_MESSENGER,
                membership=membership,
                controller=os.getpid(),
                folder=str(self._folder),
                arrival_s=_ARRIVAL_S,
                silence_s=silence_s,
            ),
        )

    @property
    def is_broken(self) -> bool:
        """Whether a rank is gone, so that nothing can be done together any more."""
        return self._lost is not None or bool(self._said[_SESSION, _EXIT])

    def sources(self) -> Sequence[Connection | int]:
        """What becomes ready when there is something to hear."""
        return [self._pipe, self._messenger.sentinel]

    def say(self, topic: str, value: object) -> None:
        """Say something to all, once a topic and phase; it is pickled."""
        self._post(self.phase, topic, value)

    def listen(self) -> None:
        """Take in what has come so far, without waiting.

        Raises:
            LostRankError: A rank is gone, or torchrun's store is.
        """
        try:
            while self._lost is None and self._pipe.poll():
                self._take(self._pipe.recv())
        except (EOFError, ConnectionResetError):
            self._lost = "the process that carries what the ranks say to each other has died"
        if self._lost is not None:
            raise LostRankError(self._lost)

    def said(self, topic: str) -> dict[int, Any]:
        """Return what ranks said on a topic in this phase, in the order in which it came."""
        return self._said[self.phase, topic]

    def gather(self, topic: str, value: object) -> list[Any]:
        """Say something, and return what all ranks say on the topic, in rank order.

        Raises:
            LostRankError: A rank is gone, or ended the phase without a word on the topic.
        """
        self.say(topic, value)
        return self._await_all(self.phase, topic)

    def end_phase(self, value: object) -> list[Any]:
        """End the phase together, and return what all ranks say at its end, in rank order.

        Raises:
            LostRankError: A rank is gone.
        """
        values = self.gather(_END, value)
        self.phase += 1
        for phase, topic in list(self._said):
            if _SESSION < phase < self.phase:
                del self._said[phase, topic]
        return values

    def leave(self, value: object) -> list[Any]:
        """Return what all ranks say at the end of the session; nobody is needed afterwards.

        Raises:
            LostRankError: A rank is gone.
        """
        self._post(_SESSION, _EXIT, value)
        values = self._await_all(_SESSION, _EXIT)
        self._post(_SESSION, _GONE, None)
        # Its host may keep the store, in which others have something to read yet.
        if self.membership.is_first:
            with contextlib.suppress(LostRankError):
                self._await_all(_SESSION, _GONE)
        return values

    def refuse_absent(self, ranks: Iterable[int], heard: Container[int]) -> None:
        """Raise LostRankError where a rank that was not heard will not be: it has gone on.

        Args:
            ranks: Who is waited for.
            heard: Who has said it.
        """
        ended = self._said[self.phase, _END]
        left = self._said[_SESSION, _EXIT]
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
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `listen` says why
            self._pipe.send_bytes(pickle.dumps((self.membership.rank, phase, topic, value)))

    def _take(self, mail: Letter | Lost) -> None:
        if isinstance(mail, Lost):
            self._lost = mail.reason
            return
        rank, phase, topic, value = pickle.loads(mail.content)
        if phase == _SESSION or phase >= self.phase:
            self._said[phase, topic][rank] = value

    def _await_all(self, phase: int, topic: str) -> list[Any]:
        heard = self._said[phase, topic]
        everyone = range(self.membership.world_size)
        while len(heard) < len(everyone):
            wait(self.sources(), _LOOK_S)
            self.listen()
            if phase != _SESSION:
                self.refuse_absent(everyone, heard)
        return [heard[rank] for rank in everyone]


def enter_messenger(start: MessengerStart, pipe: Connection) -> None:
    """Make this process one that dies with its controller, then hand over to the messenger."""
    bootstrap.die_with_controller()
    # torchrun ends whole process groups; a controller that goes on to the end needs its messenger.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    bootstrap.send_output_to(Path(start.folder) / "messenger.log")
    bootstrap.load(start.entry)(start, pipe)
