"""The GPU that the checks of gpu_acceptance.py use, and what stands in for it on a CPU.

Both do work that lasts as long as is asked, on the host or on the device, which has a queue.
"""

from __future__ import annotations

import time
import weakref
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from perfsuite.worker.jobs import cell
from perfsuite.worker.measure import device as measured
from perfsuite.worker.measure import memory
from perfsuite.worker.measure.stages import StageClock, StageMarks


class Device(Protocol):
    """A device with a queue.

    Attributes:
        is_real: Whether it is a GPU.
        torch_device: Where tensors lie.
    """

    is_real: bool
    torch_device: torch.device

    def work_on_host(self, seconds: float) -> None:
        """Keep the host busy."""

    def work(self, seconds: float) -> None:
        """Queue work for the device."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def clock(self) -> float:
        """Return the host's time, in seconds."""

    def make_event(self) -> Any:
        """Return an event with timing."""

    def allocate(self, num_bytes: int) -> object:
        """Return what holds so much memory as long as it lives."""


class Gpu:
    """The first GPU that CUDA shows."""

    is_real = True

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        self._cycles_per_s = self._calibrate()

    def _calibrate(self) -> float:
        cycles = 200_000_000
        for _ in range(5):  # the clock rises meanwhile
            begin, end = self.make_event(), self.make_event()
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            self.synchronize()
        return float(cycles / (begin.elapsed_time(end) / 1e3))

    def work_on_host(self, seconds: float) -> None:
        end_s = self.clock() + seconds
        while self.clock() < end_s:
            pass

    def work(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * self._cycles_per_s))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def clock(self) -> float:
        return time.perf_counter()

    def make_event(self) -> Any:
        return measured.make_event(self.torch_device)

    def allocate(self, num_bytes: int) -> object:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)


class StandIn:
    """A host and a device whose time is counted and not spent.

    Attributes:
        event_s: What the host needs to record an event.
        cold_s: Until it has worked for so long, its clock is a fifth of what it will be.
        num_retries: How often its allocator has waited for memory.
    """

    is_real = False
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.event_s = 0.0
        self.cold_s = 0.0
        self.num_retries = 0
        self.num_synchronized = 0
        self._now_s = 0.0
        self._done_s = 0.0
        self._worked_s = 0.0
        self.asked_bytes = self.peak_bytes = self._num_reads = 0
        self._stand_in()

    def _stand_in(self) -> None:
        """Have cells measured on it: `run_cell` believes that it drives an accelerator."""
        changed: Any = cell
        changed.is_accelerator = lambda _: True
        changed.synchronize = lambda _: self.synchronize()
        changed.memory_stats = lambda _: {"num_alloc_retries": self.num_retries}
        changed.time = SimpleNamespace(perf_counter=self.clock)
        changed.measure_rounds = partial(cell.measure_rounds, clock=self.clock)
        for kind in (StageClock, StageMarks):
            setattr(changed, kind.__name__, partial(self._make_stages, kind))
        allocator: Any = memory
        allocator.is_accelerator = lambda _: True
        allocator.synchronize = lambda _: self.synchronize()
        allocator.memory_stats = lambda _: self._read_allocator()
        on_cpu: Any = torch.cpu
        on_cpu.reset_peak_memory_stats = lambda _: self._reset_peak()

    def _make_stages(self, kind: type[StageClock], _: object, *, on_enter: Any) -> StageClock:
        return kind(
            torch.device("cuda"),
            on_enter=on_enter,
            clock=self.clock,
            make_event=lambda _: self.make_event(),
        )

    def _read_allocator(self) -> dict[str, int]:
        """As CUDA's: blocks that were cached are given whole, so they tell of what was before."""
        self._num_reads += 1
        rounded = 2**19 * (self._num_reads % 5)
        return {
            "requested_bytes.all.current": self.asked_bytes,
            "requested_bytes.all.peak": self.peak_bytes,
            "allocated_bytes.all.current": self.asked_bytes + rounded,
            "allocated_bytes.all.peak": self.peak_bytes + rounded,
            "reserved_bytes.all.peak": 2 * self.peak_bytes,
        }

    def _reset_peak(self) -> None:
        self.peak_bytes = self.asked_bytes

    def work_on_host(self, seconds: float) -> None:
        self._now_s += seconds

    def work(self, seconds: float) -> None:
        lasts_s = seconds * (5.0 if self._worked_s < self.cold_s else 1.0)
        self._worked_s += lasts_s
        self._done_s = self.at_s() + lasts_s

    def synchronize(self) -> None:
        self.num_synchronized += 1
        self._now_s = self.at_s()

    def clock(self) -> float:
        self._now_s += 1e-6  # time that somebody waits for comes
        return self._now_s

    def at_s(self) -> float:
        """Return when the device has done what is in its queue now."""
        return max(self._now_s, self._done_s)

    def make_event(self) -> Any:
        return _Event(self)

    def allocate(self, num_bytes: int) -> object:
        return _Block(self, num_bytes)


class _Block:
    def __init__(self, device: StandIn, num_bytes: int) -> None:
        device.asked_bytes += num_bytes
        device.peak_bytes = max(device.peak_bytes, device.asked_bytes)
        weakref.finalize(self, _free, device, num_bytes)


def _free(device: StandIn, num_bytes: int) -> None:
    device.asked_bytes -= num_bytes


class _Event:
    def __init__(self, device: StandIn) -> None:
        self._device = device
        self._at_s = 0.0

    def record(self) -> None:
        self._device.work_on_host(self._device.event_s)
        self._at_s = self._device.at_s()

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end._at_s - self._at_s)
