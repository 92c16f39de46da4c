"""The clock of a plain benchmark in an arm: it takes turns, and times all that its arm caused."""

import contextlib
import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Processor seconds a second that the launch may use beside the timed thread, 1.05 with it: with
# more, two cores are in use, and a single core would make the cell slower.
_MOST_BESIDE = 0.05


@dataclass(eq=False)
class TurnClock:
    """A clock that is read in pairs: the first read waits for the arm's turn, the second ends it.

    Where no other arm is in the cell, it keeps the turn until the cell ends: in a pause its threads
    would fetch ahead for later rounds. The name keeps pytest-benchmark from storing an address.
    """

    clock: Callable[[], float]
    core: "SharedCore"
    wait_for_turn: Callable[[], object]
    end_turn: Callable[[], object]
    end_round: Callable[[], object]  # which keeps the turn
    collects_garbage: bool  # at the end of each round, where pytest-benchmark keeps it from running
    waits: Any  # notices what else goes on between turns; None where no other arm is in the cell
    background_s: float = 0.0  # processor seconds of other threads, in the other arm's turns
    _planted_ratio: float = 0.0
    _started_s: float = 0.0
    _has_turn: bool = False
    _is_timing: bool = False

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = "turn_clock"
        with contextlib.suppress(ValueError):  # what is planted may not be a slowdown
            self._planted_ratio = float(os.environ.get("PERFSUITE_ARM_PLANTED", "0"))

    def __call__(self) -> float:
        """Return the time, at the start of a pair when the turn has come."""
        if self._is_timing:
            self._is_timing = False
            synchronize()
            now = self.clock() + (collection_s() if self.collects_garbage else 0.0)
            # Not a sleep, which lasts 0.1 ms too long.
            planted_s = now + self._planted_ratio * (now - self._started_s)
            while now < planted_s:
                now = self.clock()
            if self.waits is None and self.core.is_settled:
                self.end_round()
            else:
                self.end()
            return now
        if self._has_turn:
            synchronize()
        else:
            self._take_turn()
        self._is_timing = True
        self._started_s = self.clock()
        return self._started_s

    def _take_turn(self) -> None:
        self._has_turn = True
        background = self.core.background
        background.stop()
        before = background.thread_seconds()
        self.wait_for_turn()
        # Until its first turn the other arm may have been in its setup.
        if self.core.turns_s > 0 and self.waits is not None:
            self.background_s += growth(before, background.thread_seconds())
            self.waits.begin_turn()
        self.core.begin_turn()
        synchronize()
        background.resume()

    def end(self) -> None:
        """End the turn, also where the timed code has raised."""
        if self._has_turn:
            self._has_turn = self._is_timing = False
            if self.waits is not None:
                self.waits.end_turn(self.core.background.processes())
            self.core.background.stop()
            self.core.end_turn()
            if self.waits is not None:
                self.waits.settle()
            self.end_turn()
            # The other arm's turn begins when this one asks for its next: what a test does until
            # then may need its processes.
            self.core.background.resume()


@dataclass
class SharedCore:
    """The core on which a cell runs in both arms, if it keeps no second one busy; else None.

    A difference between two cores would be taken for one between the arms. But parallel work that
    starts on one core stays there. So the first turns, while pytest-benchmark calibrates, are not
    pinned, and show what the cell uses. It `is_late` where a pinned cell used more than a thread.
    """

    number: int | None
    background: Any
    is_calibrating: bool = False
    is_late: bool = False
    is_settled: bool = False  # whether it was decided where the cell runs
    turns_s: float = 0.0  # the duration of all turns so far
    _is_pinned: bool = False
    _is_serial: bool = True
    _beside_s: float = 0.0

    def begin_turn(self) -> None:
        """Remember what the launch has used until now."""
        self._began_s = time.perf_counter()
        self._processes_before = self._processes()
        self._before_s = _children_s() - time.thread_time() + time.process_time()

    def end_turn(self) -> None:
        """Add up what the launch has used in the turn, and its seconds."""
        # In this order, reading the clocks adds nothing to what a single thread has used.
        beside_s = time.process_time() - time.thread_time() + _children_s() - self._before_s
        self.turns_s += time.perf_counter() - self._began_s
        before, after = self._processes_before, self._processes()
        self._beside_s += beside_s + growth(before, after)
        is_busy = self._beside_s > _MOST_BESIDE * self.turns_s
        if after.keys() - before.keys() or self.background.threads() or is_busy:
            self._is_serial = False
        if not self.is_settled and not self.is_calibrating:
            self.settle()
        elif self._is_pinned and not self._is_serial:
            self.is_late = True
            self.unpin()

    def settle(self) -> None:
        """Pin a cell that has used one core until now."""
        self.is_settled = True
        if self._is_serial and self.number is not None:
            self._is_pinned = True
            self._cores = os.sched_getaffinity(0)  # the user's own code may have chosen them
            os.sched_setaffinity(0, {self.number})

    def unpin(self) -> None:
        """Let the launch, and all that it started, run everywhere."""
        if self._is_pinned:
            self._is_pinned = False
            for process in (os.getpid(), *self._processes()):
                with contextlib.suppress(OSError):  # it, or a thread of it, has just ended
                    for thread in Path(f"/proc/{process}/task").iterdir():
                        os.sched_setaffinity(int(thread.name), self._cores)

    def _processes(self) -> dict[int, float]:
        return {pid: process.cpu_s for pid, process in self.background.processes().items()}


def synchronize() -> None:
    """Wait for what this process has started on its GPUs: kernels run on when a call returns."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    for device in range(torch.cuda.device_count()):
        # Waiting for a device makes a context on it, which takes memory.
        if torch._C._cuda_hasPrimaryContext(device):
            torch.cuda.synchronize(device)


def free_device_memory() -> None:
    """Return the memory that torch keeps for later, where this process has used a device."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        with contextlib.suppress(RuntimeError):  # after a fault of the device nothing works there
            torch.cuda.empty_cache()


def collection_s() -> float:
    """Collect what was made since the collector was switched off; return how long garbage took."""
    began_s = time.perf_counter()
    return time.perf_counter() - began_s if gc.collect(0) else 0.0


def growth(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return what was added, by thread or process, those that are new included."""
    return sum(seconds - before.get(number, 0.0) for number, seconds in after.items())


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
