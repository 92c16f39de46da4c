"""What timing needs: a clock that waits for the device, and what ranks do together."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from perfsuite.worker.measure.device import synchronize


class DeviceClock:
    """Seconds of the host's clock `read`, when the device has done all its work, synchronised."""

    def __init__(self, device: torch.device, read: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._read = read
        self._held_s = 0.0

    def __call__(self) -> float:
        """Return the seconds until now, without those while the clock was held."""
        synchronize(self._device)
        return self._read() - self._held_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no time pass on this clock in the block."""
        before_s = self()
        yield
        self._held_s += self() - before_s


def start_together(group: dist.ProcessGroup | None = None) -> None:
    """Return when all ranks of the process group, if there is one, have called this."""
    if dist.is_initialized():
        dist.barrier(group)


def largest_over_ranks(
    values: Sequence[float], device: torch.device, group: dist.ProcessGroup | None = None
) -> list[float]:
    """Return the largest of each value over all ranks of the process group, if there is one."""
    if not dist.is_initialized():
        return list(values)
    largest = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return largest.tolist()
