"""What a series would do over more devices, by the cost model: estimates, never measurements.

The step over N devices is what one device needs for its share, and the part of the reduction that
nothing hides: all of it at worst, and at best what is longer than the backward pass, since no
gradient is there before it begins. Must not know any format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfsuite.report.rows import Row
from perfsuite.report.scaling.links import EnvironmentKey, Links, environment_of, find_links
from perfsuite.report.scaling.ring import MOST_BYTES, RingModel
from perfsuite.report.scaling.series import Point, Series, find_series

# A machine of GPUs, a rack, and a cluster.
NUM_DEVICES: Final = (8, 64, 1024)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the model says of one number of devices.

    Attributes:
        num_devices: That many.
        all_reduce_s: Seconds of the step's sums over ranks.
        step_time_s: With all of the backward pass hiding them, and with nothing.
        efficiency: Against one device, lower bound first.
    """

    num_devices: int
    all_reduce_s: float
    step_time_s: tuple[float, float]
    efficiency: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """All that cells say of scaling.

    Attributes:
        series: Weak ones before strong ones.
        links: Of each environment in which an all_reduce was measured.
    """

    series: tuple[Series, ...]
    links: Mapping[EnvironmentKey, Links]

    def expect(self, series: Series, point: Point) -> Estimate | None:
        """What the model says of a cell that was measured; None of the base."""
        if point is series.base:
            return None
        return self.predict(series, point.cell.num_devices)

    def predict(self, series: Series, num_devices: int) -> Estimate | None:
        """What the model of the series' environment says; None where there is none."""
        links = self.links.get(environment_of(series.row))
        if links is None or not isinstance(links.fitted, RingModel):
            return None
        return estimate(series, links.fitted, num_devices)

    def estimates(self, series: Series) -> tuple[Estimate, ...]:
        """What the model says of `NUM_DEVICES`, without those that were measured."""
        measured = {point.cell.num_devices for point in series.points}
        found = (self.predict(series, num) for num in NUM_DEVICES if num not in measured)
        return tuple(one for one in found if one is not None)


def describe_scaling(rows: Sequence[Row]) -> Scaling:
    """Return all that cells say of scaling."""
    return Scaling(series=find_series(rows), links=find_links(rows))


def estimate(series: Series, model: RingModel, num_devices: int) -> Estimate | None:
    """Return what the model says of a series over so many devices.

    Returns:
        None where it says nothing: the series is not of ddp against one process, its sums were
        not counted, or there would be fewer samples than devices.
    """
    base = series.base.cell
    backward_s = base.stage_s("backward")
    sums = _sums_of(series.points)
    if series.mode != "ddp" or base.mode != "single" or backward_s is None or sums is None:
        return None
    share = 1.0
    if series.kind == "strong":
        if num_devices > base.global_batch_size:
            return None
        share = 1 / num_devices
    compute_s = share * base.step_time_s
    num_collectives, num_bytes = sums
    all_reduce_s = model.time_s(num_devices, num_bytes, num_collectives)
    exposed_s = max(0.0, all_reduce_s - share * backward_s)
    hidden, exposed = compute_s + exposed_s, compute_s + all_reduce_s
    return Estimate(
        num_devices=num_devices,
        all_reduce_s=all_reduce_s,
        step_time_s=(hidden, exposed),
        efficiency=(compute_s / exposed, compute_s / hidden),
    )


def _sums_of(points: tuple[Point, ...]) -> tuple[int, int] | None:
    """How many sums over ranks a step has, and their bytes, where most devices take part."""
    record = points[-1].cell.rows[0].record
    assert record is not None
    num_collectives, num_bytes = record.counts.collectives, record.counts.collective_bytes
    if num_collectives is None or num_bytes is None:
        return None
    is_possible = 0 < num_collectives <= MOST_BYTES and 0 <= num_bytes <= MOST_BYTES
    return (num_collectives, num_bytes) if is_possible else None
