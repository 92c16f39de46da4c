"""How speed grows with devices: cells as series of weak and strong scaling, with their efficiency.

Weak: each device has the same batch. Strong: all have it together. The batch of a cell is its
samples per second times its step, so a recipe need not name it.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from perfsuite.records.recipe import Recipe
from perfsuite.report.families import mode_name, shared_fields, shared_name
from perfsuite.report.rows import Row
from perfsuite.stats.intervals import Interval, ratio_interval

Kind = Literal["weak", "strong"]
# What an interval rests on: repeated launches, or the rounds of one launch of each cell.
Basis = Literal["launches", "rounds"]

# What a clock can resolve, and more than any session takes: a file may hold any number.
_SHORTEST_S: Final = 1e-9
_LONGEST_S: Final = 1e6
# A rate times a time is whole samples but for rounding; any other rate is not one of that step.
_ROUNDING: Final = 1e-9
# Beyond it a double cannot represent every whole number.
_MOST_SAMPLES: Final = 2**53
# More than any process can start; a file may name any number.
_MOST_WORKERS: Final = 10**6


@dataclass(frozen=True, kw_only=True)
class ScaledCell:
    """One recipe over one batch of all devices, with a row for each launch; the first is shown.

    `samples_s` are step times whose spread is known: of several launches, those of earlier runs of
    the same commit included, or of the rounds of the only one. `basis` says which.
    """

    rows: tuple[Row, ...]
    recipe: Recipe
    global_batch_size: int
    samples_s: tuple[float, ...]
    basis: Basis

    @property
    def num_devices(self) -> int:
        """Over how many devices it is spread."""
        return self.recipe.plan.size

    @property
    def mode(self) -> str:
        """The mode, with its schedule."""
        return mode_name(self.recipe.plan)

    @cached_property
    def step_time_s(self) -> float:
        """The geometric mean of the samples."""
        return statistics.geometric_mean(self.samples_s)

    @property
    def samples_per_s(self) -> float:
        """Samples that all devices together train on in a second."""
        return self.global_batch_size / self.step_time_s

    def stage_s(self, name: str) -> float | None:
        """Seconds of a stage, the median over launches; None where it was not run."""
        found = (row.stages_s.get(name, math.nan) for row in self.rows)
        times = [seconds for seconds in found if seconds == 0 or is_plausible_time(seconds)]
        return statistics.median(times) if times else None

    @property
    def batch_per_device(self) -> float:
        """Samples of one step on one device."""
        return self.global_batch_size / self.num_devices

    @property
    def num_processes(self) -> int:
        """Ranks with their loader workers."""
        return self.recipe.plan.world_size * (1 + min(self.recipe.num_workers, _MOST_WORKERS))

    @property
    def shares_cores(self) -> bool:
        """Whether it runs on a CPU with fewer cores than it has processes."""
        return is_oversubscribed(self.rows[0], self.num_processes)


@dataclass(frozen=True)
class ScalingPoint:
    """One cell of a series against the base of the series, which may be itself."""

    cell: ScaledCell
    base: ScaledCell

    @cached_property
    def efficiency(self) -> Interval | None:
        """Samples per second and device over the base's; None of the base."""
        if self.cell is self.base:
            return None
        speedup = ratio_interval(self.base.samples_s, self.cell.samples_s)
        share = self.cell.batch_per_device / self.base.batch_per_device
        return Interval(
            centre=share * speedup.centre, low=share * speedup.low, high=share * speedup.high
        )

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval of the efficiency; None where its spread is not known."""
        if self.efficiency is None or not math.isfinite(self.efficiency.high):
            return None
        return self.efficiency.low, self.efficiency.high

    @property
    def exposed_ratio(self) -> float | None:
        """The part of the step that backward takes beyond its proportion to forward on the base.

        Under ddp all waiting for other ranks is in backward, and none in forward. Any other cause
        that makes a rank slower, such as sharing its core, affects both alike, so that without
        communication backward would take as many times forward as it does on the base.
        """
        if self.cell.mode != "ddp" or self.base.mode != "single":
            return None
        times = [one.stage_s(n) for one in (self.cell, self.base) for n in ("forward", "backward")]
        forward_s, backward_s, base_forward_s, base_backward_s = times
        if forward_s is None or backward_s is None or not base_forward_s or base_backward_s is None:
            return None
        return (backward_s - forward_s * base_backward_s / base_forward_s) / self.cell.step_time_s


@dataclass(frozen=True, kw_only=True)
class ScalingSeries:
    """Cells of one mode that differ in their number of devices; `name` says what they share.

    `batch` is the samples of a step that they share: of a device (weak), or of all (strong). The
    base is `single`, else the fewest devices of the mode; `points` are the others, at least one.
    """

    kind: Kind
    name: str
    mode: str
    batch: float
    base: ScaledCell
    points: tuple[ScalingPoint, ...]

    @property
    def batch_name(self) -> str:
        """The batch, for people."""
        return f"{self.batch:g} {'a device' if self.kind == 'weak' else 'in all'}"

    @property
    def cells(self) -> tuple[ScaledCell, ...]:
        """All of its cells, the base first."""
        return (self.base, *(point.cell for point in self.points))

    @property
    def row(self) -> Row:
        """Any of its rows, for what all share."""
        return self.base.rows[0]


def is_plausible_time(seconds: float) -> bool:
    """Return whether a clock can have measured a time.

    >>> is_plausible_time(0.5), is_plausible_time(0.0), is_plausible_time(float("nan"))
    (True, False, False)
    """
    return _SHORTEST_S <= seconds <= _LONGEST_S


def launches_of(row: Row) -> tuple[float, ...]:
    """Return the step times of launches of the same code: this one, and those of earlier runs.

    The code of a run of a dirty tree, or of no commit, is unknown.

    >>> launches_of(Row(name="t", step_time_s=0.5))
    (0.5,)
    """
    if row.step_time_s is None:
        return ()
    own = row.history[-1] if row.history else None
    if own is None or own.commit is None or own.is_dirty:
        return (row.step_time_s,)
    same = (point for point in row.history if point.commit == own.commit and not point.is_dirty)
    return tuple(point.step_time_s for point in same if is_plausible_time(point.step_time_s))


def is_oversubscribed(row: Row, num_processes: int) -> bool:
    """Return whether so many processes of a cell share cores; False where it is not known.

    A record does not say over how many hosts torchrun spread its ranks: they count as one's.
    """
    is_on_cpu = row.record is not None and row.record.device == "cpu"
    return is_on_cpu and row.num_cores is not None and num_processes > row.num_cores


def find_series(rows: Sequence[Row]) -> tuple[ScalingSeries, ...]:
    """Return every series of at least two numbers of devices, weak ones before strong ones."""
    groups: dict[tuple[object, ...], list[ScaledCell]] = {}
    for cell in _cells(rows):
        key = shared_fields(cell.rows[0], "parallel", "micro_batch_size")
        groups.setdefault(key, []).append(cell)
    kinds: tuple[Kind, ...] = ("weak", "strong")
    return tuple(
        series for kind in kinds for cells in groups.values() for series in _series(kind, cells)
    )


def _cells(rows: Sequence[Row]) -> Iterator[ScaledCell]:
    groups: dict[tuple[int, tuple[object, ...]], list[Row]] = {}
    for row in rows:
        batch_size = _global_batch_size(row)
        if batch_size is not None and row.recipe is not None:
            groups.setdefault((batch_size, shared_fields(row, "micro_batch_size")), []).append(row)
    for (batch_size, _), launched in groups.items():
        recipe = launched[0].recipe
        assert recipe is not None
        times_s = tuple(seconds for row in launched for seconds in launches_of(row))
        has_many = len(times_s) > 1
        yield ScaledCell(
            rows=tuple(launched),
            recipe=recipe,
            global_batch_size=batch_size,
            samples_s=times_s if has_many else launched[0].rounds_s or times_s,
            basis="launches" if has_many else "rounds",
        )


def _global_batch_size(row: Row) -> int | None:
    """Samples of one step over all devices; None where the cell has none that could be counted."""
    if row.record is None or row.record.samples_per_s is None or row.step_time_s is None:
        return None
    if not all(map(is_plausible_time, (row.step_time_s, *row.rounds_s))):
        return None
    samples = row.record.samples_per_s * row.step_time_s
    if not 0 < samples <= _MOST_SAMPLES:
        return None
    nearest = round(samples)
    return nearest if nearest and abs(samples - nearest) <= _ROUNDING * samples else None


def _series(kind: Kind, cells: Sequence[ScaledCell]) -> Iterator[ScalingSeries]:
    def batch_of(cell: ScaledCell) -> float:
        return cell.batch_per_device if kind == "weak" else float(cell.global_batch_size)

    alone = {batch_of(cell): cell for cell in cells if cell.mode == "single"}
    by_mode: dict[tuple[str, float], list[ScaledCell]] = {}
    for cell in cells:
        if cell.mode != "single":
            by_mode.setdefault((cell.mode, batch_of(cell)), []).append(cell)
    for (mode, batch), members in by_mode.items():
        ordered = sorted(members, key=lambda cell: cell.num_devices)
        base = alone.get(batch) or ordered[0]
        others = [cell for cell in ordered if cell is not base]
        if all(cell.num_devices == base.num_devices for cell in others):
            continue
        yield ScalingSeries(
            kind=kind,
            name=shared_name(base.rows[0], "parallel"),
            mode=mode,
            batch=batch,
            base=base,
            points=tuple(ScalingPoint(cell, base) for cell in others),
        )
