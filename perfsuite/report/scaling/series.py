"""How speed grows with devices: cells as series of weak and strong scaling, with their efficiency.

Weak: each device has the same batch. Strong: all have it together. The batch of a cell is its
samples per second times its step, so a recipe need not name it. Estimates: decision 0015.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Literal, NamedTuple, get_args

from perfsuite.records.recipe import Recipe
from perfsuite.report.families import mode_name, shared_fields, shared_name
from perfsuite.report.rows import Row, is_plausible_time
from perfsuite.report.scaling.cost_model import EnvironmentKey, Links, environment_of, find_links
from perfsuite.stats.intervals import Interval, ratio_interval

Kind = Literal["weak", "strong"]
# What an interval rests on: repeated launches, or the rounds of one launch of each cell.
Basis = Literal["launches", "rounds"]

# A machine of GPUs, a rack, and a cluster.
NUM_DEVICES = (8, 64, 1024)
# A rate times a time is whole samples but for rounding; any other rate is not one of that step.
_ROUNDING = 1e-9
# Beyond it a double cannot represent every whole number.
_MOST_SAMPLES = 2**53
# More than any process can start; a file may name any number.
_MOST_WORKERS = 10**6


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the model says of one number of devices."""

    num_devices: int
    all_reduce_s: float  # of all reductions of a step
    step_time_s: tuple[float, float]  # with all of the backward pass overlapping them; without
    efficiency: tuple[float, float]  # against one device, lower bound first


@dataclass(frozen=True, kw_only=True)
class ScaledCell:
    """One recipe over one batch of all devices, with a row for each launch; the first is shown."""

    rows: tuple[Row, ...]
    recipe: Recipe
    global_batch_size: int
    # Step times whose spread is known: of several launches, those of earlier runs of the same
    # commit included, or of the rounds of the only one; `basis` says which.
    samples_s: tuple[float, ...]
    basis: Basis
    base: "ScaledCell | None" = None  # of its series, unless it is that
    expected: Estimate | None = None  # by the model, in a series

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
        """Whether it has more processes than a CPU has cores."""
        return self.rows[0].shares_cores(self.num_processes)

    @cached_property
    def efficiency(self) -> Interval | None:
        """Samples per second and device over the base's; None of the base."""
        if self.base is None:
            return None
        costs_s = ([s / one.batch_per_device for s in one.samples_s] for one in (self.base, self))
        return ratio_interval(*costs_s)

    @property
    def exposed_ratio(self) -> float | None:
        """The part of the step that backward takes beyond its proportion to forward on the base."""
        # Under ddp all waiting for other ranks is in backward; any other cause slows both alike.
        if self.base is None or self.mode != "ddp" or self.base.mode != "single":
            return None
        times = [one.stage_s(name) for one in (self, self.base) for name in ("forward", "backward")]
        forward_s, backward_s, base_forward_s, base_backward_s = times
        if forward_s is None or backward_s is None or not base_forward_s or base_backward_s is None:
            return None
        return (backward_s - forward_s * base_backward_s / base_forward_s) / self.step_time_s


class ScalingSeries(NamedTuple):
    """Cells of one mode that differ in their number of devices."""

    kind: Kind
    name: str  # what they share
    mode: str
    batch: float  # the samples of a step that they share: of a device (weak), or of all (strong)
    # At least two; the first is the base: `single`, else the fewest devices of the mode.
    cells: tuple[ScaledCell, ...]
    estimates: tuple[Estimate, ...]  # of `NUM_DEVICES`, without those that were measured

    @property
    def batch_name(self) -> str:
        """The batch, for people."""
        return f"{self.batch:g} {'a device' if self.kind == 'weak' else 'in all'}"


class Scaling(NamedTuple):
    """What cells say of scaling: weak series before strong ones, and links of each environment."""

    series: tuple[ScalingSeries, ...]
    links: Mapping[EnvironmentKey, Links]


def describe_scaling(rows: Sequence[Row]) -> Scaling:
    """Return every series of at least two numbers of devices, and the links."""
    links = find_links(rows)
    groups: dict[tuple[object, ...], list[ScaledCell]] = {}
    for cell in _cells(rows):
        key = shared_fields(cell.rows[0], "parallel", "micro_batch_size")
        groups.setdefault(key, []).append(cell)
    series = (_series(kind, cells, links) for kind in get_args(Kind) for cells in groups.values())
    return Scaling(series=tuple(chain.from_iterable(series)), links=links)


def _cells(rows: Sequence[Row]) -> Iterator[ScaledCell]:
    groups: dict[tuple[int, tuple[object, ...]], list[Row]] = {}
    for row in rows:
        batch_size, record, recipe = _global_batch_size(row), row.record, row.recipe
        if batch_size is None or record is None or recipe is None:
            continue
        # Replicas that follow one another on a device are no scaling.
        if record.num_devices is None or record.num_devices >= recipe.plan.size:
            groups.setdefault((batch_size, shared_fields(row, "micro_batch_size")), []).append(row)
    for (batch_size, _), launched in groups.items():
        recipe = launched[0].recipe
        assert recipe is not None
        times_s = tuple(seconds for row in launched for seconds in row.launches_s)
        rounds_s = () if len(times_s) > 1 else launched[0].rounds_s  # a stored run has none
        yield ScaledCell(
            rows=tuple(launched),
            recipe=recipe,
            global_batch_size=batch_size,
            samples_s=rounds_s or times_s,
            basis="rounds" if rounds_s else "launches",
        )


def _global_batch_size(row: Row) -> int | None:
    if row.record is None or row.record.samples_per_s is None or row.step_time_s is None:
        return None
    if not all(map(is_plausible_time, (row.step_time_s, *row.rounds_s))):
        return None
    samples = row.record.samples_per_s * row.step_time_s
    if not 0 < samples <= _MOST_SAMPLES:
        return None
    nearest = round(samples)
    return nearest if nearest and abs(samples - nearest) <= _ROUNDING * samples else None


def _series(
    kind: Kind, cells: Sequence[ScaledCell], links: Mapping[EnvironmentKey, Links]
) -> Iterator[ScalingSeries]:
    alone: dict[float, ScaledCell] = {}
    by_mode: dict[tuple[str, float], list[ScaledCell]] = {}
    for cell in cells:
        batch = cell.batch_per_device if kind == "weak" else float(cell.global_batch_size)
        if cell.mode == "single":
            alone[batch] = cell
        else:
            by_mode.setdefault((cell.mode, batch), []).append(cell)
    for (mode, batch), members in by_mode.items():
        ordered = sorted(members, key=lambda cell: cell.num_devices)
        if batch in alone:
            ordered.insert(0, alone[batch])
        measured = {cell.num_devices for cell in ordered}
        if len(measured) == 1:
            continue
        base, *rest = ordered
        estimate = partial(_estimate, links.get(environment_of(base.rows[0])), kind, base, rest[-1])
        scaled = (replace(one, base=base, expected=estimate(one.num_devices)) for one in rest)
        found = (estimate(number) for number in NUM_DEVICES if number not in measured)
        yield ScalingSeries(
            kind=kind,
            name=shared_name(base.rows[0], "parallel"),
            mode=mode,
            batch=batch,
            cells=(base, *scaled),
            estimates=tuple(one for one in found if one is not None),
        )


def _estimate(
    links: Links | None, kind: Kind, base: ScaledCell, widest: ScaledCell, num_devices: int
) -> Estimate | None:
    """What the model, if there is one, says of so many devices; `widest` is the series' last."""
    record, backward_s = widest.rows[0].record, base.stage_s("backward")
    assert record is not None
    num_collectives, num_bytes = record.counts.collectives, record.counts.collective_bytes
    if links is None or links.model is None or (base.mode, widest.mode) != ("single", "ddp"):
        return None
    if backward_s is None or not num_collectives or num_bytes is None:
        return None
    if kind == "strong" and num_devices > base.global_batch_size:
        return None
    share = 1 / num_devices if kind == "strong" else 1.0
    compute_s = share * base.step_time_s
    reduce_s = links.model.time_s(num_devices, num_bytes, num_collectives)
    overlapped_s = compute_s + max(0.0, reduce_s - share * backward_s)
    exposed_s = compute_s + reduce_s
    return Estimate(
        num_devices=num_devices,
        all_reduce_s=reduce_s,
        step_time_s=(overlapped_s, exposed_s),
        efficiency=(compute_s / exposed_s, compute_s / overlapped_s),
    )
