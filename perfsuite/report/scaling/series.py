"""How speed grows with devices: cells as series of weak and strong scaling, with their efficiency.

Weak: each device has the same batch. Strong: all have it together. The batch of a cell is its
samples per second times its step, so a recipe need not name it. Sees rows only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import geometric_mean
from typing import Final, Literal

from perfsuite.records.parallel import ParallelPlan
from perfsuite.report.families import mode_name, shared_fields, shared_name
from perfsuite.report.rows import Row
from perfsuite.report.scaling.ring import is_time
from perfsuite.stats import intervals
from perfsuite.stats.intervals import Interval, ratio_interval

Kind = Literal["weak", "strong"]
# What an interval rests on: repeated launches, or the rounds of one launch of each cell.
Basis = Literal["launches", "rounds"]

# A rate times a time is a whole number of samples but for the rounding of doubles; anything else
# is no rate of that step.
_ROUNDING: Final = 1e-9
# Beyond it a double cannot tell whole numbers.
_MOST_SAMPLES: Final = 2**53
# More than any process can start; a file may name any number.
_MOST_WORKERS: Final = 10**6


@dataclass(frozen=True, kw_only=True)
class ScaledCell:
    """One recipe over one batch, however often it was launched.

    Attributes:
        rows: Its launches in one session, or in several tests of it; the first is shown.
        num_devices: Over which it is spread.
        global_batch_size: Samples of one step over all of them.
    """

    rows: tuple[Row, ...]
    num_devices: int
    global_batch_size: int

    @property
    def parallel(self) -> str:
        """The recipe's."""
        assert self.rows[0].recipe is not None
        return self.rows[0].recipe.parallel

    @property
    def plan(self) -> ParallelPlan:
        """How it is spread over the devices."""
        assert self.rows[0].recipe is not None
        return self.rows[0].recipe.plan

    @property
    def mode(self) -> str:
        """The mode, with its schedule."""
        return mode_name(self.plan)

    @cached_property
    def launches_s(self) -> tuple[float, ...]:
        """The step time of each launch, those of earlier runs of the same commit included."""
        return tuple(seconds for row in self.rows for seconds in launches_of(row))

    @property
    def basis(self) -> Basis:
        """What `samples_s` are."""
        return "launches" if len(self.launches_s) > 1 else "rounds"

    @property
    def samples_s(self) -> tuple[float, ...]:
        """The step times whose spread is known: of launches, or of the rounds of the only one."""
        return self.launches_s if self.basis == "launches" else self._rounds_s

    @property
    def _rounds_s(self) -> tuple[float, ...]:
        return self.rows[0].rounds_s or self.launches_s

    @cached_property
    def step_time_s(self) -> float:
        """The geometric mean of the samples."""
        return geometric_mean(self.samples_s)

    @property
    def samples_per_s(self) -> float:
        """Samples that all devices together train on in a second."""
        return self.global_batch_size / self.step_time_s

    def stage_s(self, name: str) -> float | None:
        """Seconds of a stage, the median over launches; None where it was not run."""
        found = (row.stages_s.get(name, math.nan) for row in self.rows)
        times = [seconds for seconds in found if seconds == 0 or is_time(seconds)]
        return intervals.median(times) if times else None

    @property
    def batch_per_device(self) -> Fraction:
        """Samples of one step on one device."""
        return Fraction(self.global_batch_size, self.num_devices)

    @property
    def num_processes(self) -> int:
        """Ranks with their loader workers."""
        recipe = self.rows[0].recipe
        assert recipe is not None
        return recipe.plan.world_size * (1 + min(recipe.num_workers, _MOST_WORKERS))

    @property
    def shares_cores(self) -> bool:
        """Whether it runs on a CPU with fewer cores than it has processes."""
        return have_too_few_cores(self.rows[0], self.num_processes)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One cell of a series, against the one that it is measured by.

    Attributes:
        cell: The cell.
        efficiency: Its samples per second and device over those of the base; None of the base.
        forward_ratio: Seconds of forward for a sample of a device, over the base's; None where
            forward communicates, or was not measured.
        exposed_ratio: The part of the step that waits for communication; None where it cannot be
            told from the stages.
    """

    cell: ScaledCell
    efficiency: Interval | None
    forward_ratio: float | None
    exposed_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Cells of one mode that differ in their number of devices.

    Attributes:
        name: What they share, for people.
        batch: Samples of a step that they share: of a device (weak), or of all (strong).
        base: What the others are measured by: `single` where it was measured, else the fewest
            devices of the mode.
        points: At least one, in order of devices; without the base.
    """

    kind: Kind
    name: str
    mode: str
    batch: Fraction
    base: Point
    points: tuple[Point, ...]

    @property
    def batch_name(self) -> str:
        """The batch, for people."""
        return f"{float(self.batch):g} {'a device' if self.kind == 'weak' else 'in all'}"

    @property
    def cells(self) -> tuple[ScaledCell, ...]:
        """All of its cells, the base first."""
        return tuple(point.cell for point in (self.base, *self.points))

    @property
    def row(self) -> Row:
        """Any of its rows, for what all share."""
        return self.base.cell.rows[0]


def launches_of(row: Row) -> tuple[float, ...]:
    """Return the step times of launches of the same code: this one, and those of earlier runs.

    A run of a dirty tree, or of no commit, is of code that nobody can name.

    >>> launches_of(Row(name="t", step_time_s=0.5))
    (0.5,)
    """
    if row.step_time_s is None:
        return ()
    own = row.history[-1] if row.history else None
    if own is None or own.commit is None or own.is_dirty:
        return (row.step_time_s,)
    same = (past for past in row.history if past.commit == own.commit and not past.is_dirty)
    return tuple(past.step_time_s for past in same if is_time(past.step_time_s))


def have_too_few_cores(row: Row, num_processes: int) -> bool:
    """Return whether so many processes of a cell share cores; False where it is not known.

    A record does not say over how many hosts torchrun spread its ranks: they count as one's.
    """
    is_on_cpu = row.record is not None and row.record.device == "cpu"
    return is_on_cpu and row.num_cores is not None and num_processes > row.num_cores


def find_series(rows: Sequence[Row]) -> tuple[Series, ...]:
    """Return every series of at least two numbers of devices, weak ones before strong ones."""
    alike: dict[tuple[object, ...], list[ScaledCell]] = {}
    for cell in _cells(rows):
        key = shared_fields(cell.rows[0], "parallel", "micro_batch_size")
        alike.setdefault(key, []).append(cell)
    kinds: tuple[Kind, ...] = ("weak", "strong")
    return tuple(
        series for kind in kinds for cells in alike.values() for series in _series(kind, cells)
    )


def _cells(rows: Sequence[Row]) -> Iterator[ScaledCell]:
    same: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        batch_size = _global_batch_size(row)
        if batch_size is not None and row.recipe is not None:
            key = (*shared_fields(row, "micro_batch_size"), batch_size)
            same.setdefault(key, []).append(row)
    for launched in same.values():
        recipe, batch_size = launched[0].recipe, _global_batch_size(launched[0])
        assert recipe is not None
        assert batch_size is not None
        yield ScaledCell(
            rows=tuple(launched), num_devices=recipe.plan.size, global_batch_size=batch_size
        )


def _global_batch_size(row: Row) -> int | None:
    """Samples of one step over all devices; None where the cell has none that could be counted."""
    if row.record is None or row.record.samples_per_s is None or row.step_time_s is None:
        return None
    if not all(map(is_time, (row.step_time_s, *row.rounds_s))):
        return None
    samples = row.record.samples_per_s * row.step_time_s
    if not 0 < samples <= _MOST_SAMPLES:
        return None
    nearest = round(samples)
    return nearest if nearest and abs(samples - nearest) <= _ROUNDING * samples else None


def _series(kind: Kind, cells: Sequence[ScaledCell]) -> Iterator[Series]:
    def batch_of(cell: ScaledCell) -> Fraction:
        return cell.batch_per_device if kind == "weak" else Fraction(cell.global_batch_size)

    alone = {batch_of(cell): cell for cell in cells if cell.mode == "single"}
    by_mode: dict[tuple[str, Fraction], list[ScaledCell]] = {}
    for cell in cells:
        if cell.mode != "single":
            by_mode.setdefault((cell.mode, batch_of(cell)), []).append(cell)
    for (mode, batch), members in by_mode.items():
        ordered = sorted(members, key=lambda cell: cell.num_devices)
        base = alone.get(batch) or ordered[0]
        others = [cell for cell in ordered if cell is not base]
        if all(cell.num_devices == base.num_devices for cell in others):
            continue
        yield Series(
            kind=kind,
            name=shared_name(base.rows[0], "parallel"),
            mode=mode,
            batch=batch,
            base=_point(base, base),
            points=tuple(_point(cell, base) for cell in others),
        )


def _point(cell: ScaledCell, base: ScaledCell) -> Point:
    return Point(
        cell=cell,
        efficiency=None if cell is base else _efficiency(cell, base),
        forward_ratio=_forward_ratio(cell, base),
        exposed_ratio=_exposed_ratio(cell, base),
    )


def _efficiency(cell: ScaledCell, base: ScaledCell) -> Interval:
    faster = ratio_interval(base.samples_s, cell.samples_s)
    share = float(cell.batch_per_device / base.batch_per_device)
    return Interval(centre=share * faster.centre, low=share * faster.low, high=share * faster.high)


def _forward_ratio(cell: ScaledCell, base: ScaledCell) -> float | None:
    mine, its = cell.stage_s("forward"), base.stage_s("forward")
    if cell is base or not cell.plan.properties.forward_is_local or mine is None or not its:
        return None
    return mine / its / float(cell.batch_per_device / base.batch_per_device)


def _exposed_ratio(cell: ScaledCell, base: ScaledCell) -> float | None:
    """The part of the step that backward takes beyond its proportion to forward on the base.

    Under ddp all waiting for other ranks is in backward, and none in forward. What else makes a
    rank slower, such as sharing its core, meets both alike, so that without communication
    backward would take as many times forward as it does on the base.
    """
    if cell.mode != "ddp" or base.mode != "single":
        return None
    times = [one.stage_s(name) for one in (cell, base) for name in ("forward", "backward")]
    forward_s, backward_s, base_forward_s, base_backward_s = times
    if forward_s is None or backward_s is None or not base_forward_s or base_backward_s is None:
        return None
    return (backward_s - forward_s * base_backward_s / base_forward_s) / cell.step_time_s
