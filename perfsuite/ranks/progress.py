"""A board in shared memory: every rank writes on it what it is doing, the controller reads it."""

import mmap
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfsuite.records.stages import STAGES
from perfsuite.system.files import explained

PHASES = (
    *("start", "build", "warm-up", "measure", "count", "call", "record", "check", "finish"),
    "exit",  # of a command that ends by itself
)
# A slot holds the index of the stage; the first means none.
_STAGES = ("", *STAGES)
# Marks so far, steps so far, phase, stage.
_SLOT = struct.Struct("<qqhh")
# Ranks write side by side; a slot of its own cache line keeps them from slowing each other.
_SLOT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class Position:
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

    def read(self, rank: int) -> Position:
        """Return where `rank` is now."""
        num_marks, step, phase, index = _SLOT.unpack_from(self._map, rank * _SLOT_BYTES)
        stage = _STAGES[index] or None
        return Position(num_marks=num_marks, phase=PHASES[phase], stage=stage, step=step)

    def stuck_for_s(self, ranks: Sequence[int]) -> float:
        """Return the seconds since any of `ranks` was seen to move."""
        for rank in ranks:
            num_marks = self.read(rank).num_marks
            if num_marks != self._marks.get(rank):
                self._marks[rank] = num_marks
                self._last_progress_s = time.monotonic()
        return time.monotonic() - self._last_progress_s

    def writer(self, rank: int) -> "BoardWriter":
        """Return one rank's writer."""
        return BoardWriter(self._map, rank * _SLOT_BYTES)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


class BoardWriter:
    """Writes one rank's slot: each call is one mark of progress."""

    def __init__(self, board: mmap.mmap, offset: int) -> None:
        self._board = board
        self._offset = offset
        self._num_marks = self._step = self._phase = self._stage = 0

    def enter_phase(self, name: str) -> None:
        """Show that the rank begins a phase of the cell, one of `PHASES`."""
        self._phase = PHASES.index(name)
        self._stage = 0
        self.mark()

    def enter_stage(self, name: str) -> None:
        """Show that the rank begins a stage of a step, one of `STAGES`."""
        self._stage = _STAGES.index(name)
        self.mark()

    def begin_step(self) -> None:
        """Show that the rank begins an optimizer step."""
        self._step += 1
        self._stage = 0
        self.mark()

    def mark(self) -> None:
        """Show that the rank is not stuck."""
        self._num_marks += 1
        marks, step, phase, stage = self._num_marks, self._step, self._phase, self._stage
        _SLOT.pack_into(self._board, self._offset, marks, step, phase, stage)
