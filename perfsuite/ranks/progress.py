"""A board in shared memory: every rank writes on it what it is doing, the controller reads it."""

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perfsuite.records.stages import STAGES
from perfsuite.system.files import explained

FIRST_STEP = "first step"  # of a loop
PHASES = (
    *("start", "build", FIRST_STEP, "warm-up", "measure", "count", "call", "record", "check"),
    "finish",
    "stop by perfsuite.StopLoop (does a bare except catch it?)",
    "exit",  # of a command that ends by itself
)
# Eight numbers; ranks write side by side, and a cache line of its own slows no other down.
_SLOT_BYTES = 64
_MARKS, _STEP, _PHASE, _STAGE = range(4)
_STAGES = {name: number for number, name in enumerate(STAGES, start=1)}  # 0 is none


class Position(NamedTuple):
    """Where a rank was at its last mark; `step` counts the optimizer steps that it has begun."""

    num_marks: int
    phase: str
    stage: str | None
    step: int

    def __str__(self) -> str:
        step = f", step {self.step}" if self.step else ""
        where = f", stage '{self.stage}' of step {self.step}" if self.stage else step
        return f"phase '{self.phase}'{where}"


class Board:
    """The slots of all ranks of one group, in one mapped file."""

    def __init__(self, path: Path, world_size: int) -> None:
        """Map the file, made where it does not exist; raises a WriteError where no room is left."""
        self._marks: dict[int, int] = {}
        self._last_progress_s = time.monotonic()
        size = world_size * _SLOT_BYTES
        advice = "; make room, or set TMPDIR to a folder that has it"
        with explained(f"write {path}", advice), path.open("a+b") as file:
            # Reserved, not only sized: writing to a hole of a full disk would be a SIGBUS.
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
        self._numbers = memoryview(self._map).cast("q")

    def read(self, rank: int) -> Position:
        """Return where `rank` is now."""
        num_marks, step, phase, index, *_ = self._slot(rank)
        stage = STAGES[index - 1] if index else None
        return Position(num_marks=num_marks, phase=PHASES[phase], stage=stage, step=step)

    def stuck_for_s(self, ranks: Sequence[int]) -> float:
        """Return the seconds since any of `ranks` was seen to move."""
        for rank in ranks:
            if (num_marks := self.read(rank).num_marks) != self._marks.get(rank):
                self._marks[rank] = num_marks
                self._last_progress_s = time.monotonic()
        return time.monotonic() - self._last_progress_s

    def writer(self, rank: int) -> "BoardWriter":
        """Return one rank's writer."""
        return BoardWriter(self._slot(rank))

    def close(self) -> None:
        """Unmap the file."""
        self._numbers.release()
        self._map.close()

    def _slot(self, rank: int) -> memoryview:
        return self._numbers[8 * rank : 8 * rank + 8]


class BoardWriter:
    """Writes one rank's slot: each call is one mark of progress, and a part of what is timed."""

    def __init__(self, slot: memoryview) -> None:
        self._slot = slot

    def enter_phase(self, name: str) -> None:
        """Show that the rank begins a phase of the cell, one of `PHASES`."""
        self._slot[_PHASE] = PHASES.index(name)
        self._slot[_STAGE] = 0
        self.mark()

    def enter_stage(self, name: str) -> None:
        """Show that the rank begins a stage of a step, one of `STAGES`."""
        slot = self._slot
        slot[_STAGE] = _STAGES[name]
        slot[_MARKS] += 1

    def begin_step(self) -> None:
        """Show that the rank begins an optimizer step."""
        slot = self._slot
        slot[_STEP] += 1
        slot[_STAGE] = 0
        slot[_MARKS] += 1

    def mark(self) -> None:
        """Show that the rank is not stuck."""
        self._slot[_MARKS] += 1
