"""The turns of all ranks of an arm, where the first alone speaks to the gate. Runs in a rank."""

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from perfsuite.ranks.messages import RankStart
from perfsuite.ranks.turns import Agreed, Turns
from perfsuite.worker.measure.clock import largest_over_ranks, start_together
from perfsuite.worker.store import prefer_loopback

# Ranks that wait for the first one may wait long; the controller ends them where it has ended.
_PATIENCE = datetime.timedelta(days=1)


class ArmTurns:
    """The turns of all ranks of one arm, if there is another: the first asks, the others wait."""

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
