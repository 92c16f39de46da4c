"""The turns of all ranks of one arm of a gate."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from perfsuite.ranks import messages
from perfsuite.ranks.turns import Agreed, Turns
from perfsuite.system import background
from perfsuite.worker.measure.clock import collector_state, largest_over_ranks, start_together
from perfsuite.worker.store import FOR_A_TURN, Largest, prefer_loopback


class ArmTurns:
    """The turns of all ranks of one arm, if there is another: the first asks, the others wait."""

    def __init__(self, start: messages.RankStart, on_wait: Callable[[], None]) -> None:
        self._channel = channel = start.request.policy.turns
        self.are_needed = channel is not None
        self._first = Turns(channel, on_wait) if channel is not None and start.rank == 0 else None
        self._newest, self._daemons = b"", dict[int, background.Process]()
        self._group: dist.ProcessGroup | None = None
        # A barrier of NCCL is a kernel that spins until the last rank comes, on the very GPUs that
        # the other arm is timed on. One of gloo waits on the host.
        if self.are_needed and start.request.needs_group and start.assignment.backend == "nccl":
            prefer_loopback(start)
            group: Any = dist.new_group(backend="gloo", timeout=FOR_A_TURN)
            self._group = group

    @contextmanager
    def take(self, meet: Callable[[], None] = start_together) -> Iterator[None]:
        """Hold the turn on all ranks, which meet before and after it."""
        if not self.are_needed:
            yield
            return
        if self._group is not None:
            meet = partial(start_together, self._group)
        with nullcontext() if self._first is None else self._hold(self._first):
            # No rank is at work before the first has the turn, or after the other arm may begin.
            meet()
            yield
            meet()

    @contextmanager
    def _hold(self, first: Turns) -> Iterator[None]:
        """Hold the turn; without it, where no rank is at work, what any has left apart rests."""
        self.signal_daemons(signal.SIGSTOP)
        with first.take():
            self.signal_daemons(signal.SIGCONT)
            yield
            self.signal_daemons(signal.SIGSTOP)

    def signal_daemons(self, number: signal.Signals) -> None:
        """Signal what the launch has left apart, from the first rank; looked for as any starts."""
        if self._first is not None and (newest := background.newest_process()) != self._newest:
            self._newest, self._daemons = newest, background.daemons(background.list_processes())
        background.signal_all(self._daemons, number)

    def end_round(self) -> None:
        """Tell the gate of a round that keeps the turn."""
        if self._first is not None:
            self._first.end_round()

    def tell(self, **noticed: object) -> None:
        """Tell the gate, from any rank, what it cannot see."""
        if self._channel is not None:
            (self._first or Turns(self._channel)).tell(**noticed)

    def agree(self, num_iterations: int, iteration_s: float, largest: Largest) -> Agreed:
        """Return what all ranks of both arms run; `largest` is taken over the ranks."""
        state = collector_state()
        extremes = self.largest([*state, *(-one for one in state)], largest)
        told = [0.0] * len(Agreed._fields)
        if self._first is not None:
            told = [*map(float, self._first.agree(num_iterations, iteration_s, extremes))]
        told = self.largest(told, largest)
        return Agreed(int(told[0]), int(told[1]), *map(bool, told[2:]))

    def largest(self, values: Sequence[float], largest: Largest) -> list[float]:
        """Return the largest of each value over the ranks, as `largest` does, and spin nowhere."""
        if self._group is None:
            return largest(values)
        return largest_over_ranks(values, torch.device("cpu"), self._group)
