"""What communication costs in each environment, and what a series would do over more devices.

Cells whose ranks share cores also measure ranks that wait for a core, so nothing is fitted to them.
An estimate is never a measurement. The step over N devices is what one device needs for its share,
and the exposed part of the reduction: all of it at worst, and at best what is longer than the
backward pass, since no gradient is there before it begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfsuite.report.rows import Row
from perfsuite.report.scaling import ring
from perfsuite.report.scaling.ring import AllReduce, HeldOut, RingModel
from perfsuite.report.scaling.series import (
    ScalingSeries,
    find_series,
    is_oversubscribed,
    is_plausible_time,
    launches_of,
)

# What `all_reduce_benchmark` calls its workload.
_ALL_REDUCE: Final = "all_reduce"
# A machine of GPUs, a rack, and a cluster.
NUM_DEVICES: Final = (8, 64, 1024)

# Device and fingerprint.
EnvironmentKey = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of one environment; the names of the fields are those of scaling.json.

    Attributes:
        reason: Why the measurements give no model.
        all_reduces: What the model is fitted to, one for each launch.
        all_reduces_sharing_cores: Those of more ranks than cores, in no fit.
        held_out: Predictions of measurements that were left out in turn.
    """

    device: str
    fingerprint: str | None
    num_cores: int | None
    model: RingModel | None
    reason: str | None
    all_reduces: tuple[AllReduce, ...]
    all_reduces_sharing_cores: tuple[AllReduce, ...]
    held_out: tuple[HeldOut, ...]

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Of the measurements that the model is fitted to, in order."""
        return tuple(sorted({one.world_size for one in self.all_reduces}))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What the model says of one number of devices; `all_reduce_s` are all reductions of a step.

    `step_time_s` is with all of the backward pass overlapping them, and without overlap;
    `efficiency` is against one device, lower bound first.
    """

    num_devices: int
    all_reduce_s: float
    step_time_s: tuple[float, float]
    efficiency: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What cells say of scaling: weak series before strong ones, and links of each environment."""

    series: tuple[ScalingSeries, ...]
    links: Mapping[EnvironmentKey, Links]

    def predict(self, series: ScalingSeries, num_devices: int) -> Estimate | None:
        """What the model of the series' environment says of so many devices.

        None where there is no model, the series is not of ddp against one process, its collectives
        were not counted, or there would be fewer samples than devices.
        """
        links = self.links.get(environment_of(series.row))
        base, backward_s = series.base, series.base.stage_s("backward")
        # Where most devices take part.
        record = series.points[-1].cell.rows[0].record
        assert record is not None
        num_collectives, num_bytes = record.counts.collectives, record.counts.collective_bytes
        if links is None or links.model is None or series.mode != "ddp" or base.mode != "single":
            return None
        if backward_s is None or not num_collectives or num_bytes is None:
            return None
        share = 1.0
        if series.kind == "strong":
            if num_devices > base.global_batch_size:
                return None
            share = 1 / num_devices
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

    def estimates(self, series: ScalingSeries) -> tuple[Estimate, ...]:
        """What the model says of `NUM_DEVICES`, without those that were measured."""
        measured = {point.cell.num_devices for point in series.points}
        found = (self.predict(series, num) for num in NUM_DEVICES if num not in measured)
        return tuple(one for one in found if one is not None)


def describe_scaling(rows: Sequence[Row]) -> Scaling:
    """Return all that cells say of scaling."""
    reduced: dict[EnvironmentKey, list[Row]] = {}
    for row in rows:
        if _is_bare_all_reduce(row):
            reduced.setdefault(environment_of(row), []).append(row)
    links = {key: _links(key, cells) for key, cells in reduced.items()}
    return Scaling(series=find_series(rows), links=links)


def environment_of(row: Row) -> EnvironmentKey:
    """Return where a cell of ours ran."""
    assert row.record is not None
    return row.record.device, row.record.fingerprint


def _is_bare_all_reduce(row: Row) -> bool:
    """Whether the cell is a single all_reduce; a user's workload of that name has samples."""
    record = row.record
    return (
        record is not None
        and row.recipe is not None
        and record.workload == _ALL_REDUCE
        and record.samples_per_s is None
        and record.counts.collectives == 1
        and record.counts.collective_bytes is not None
    )


def _links(key: EnvironmentKey, rows: Sequence[Row]) -> Links:
    measured: list[AllReduce] = []
    sharing: list[AllReduce] = []
    for row in rows:
        assert row.record is not None
        assert row.recipe is not None
        num_bytes, world_size = row.record.counts.collective_bytes, row.recipe.plan.world_size
        assert num_bytes is not None
        (sharing if is_oversubscribed(row, world_size) else measured).extend(
            AllReduce(world_size=world_size, num_bytes=num_bytes, time_s=seconds)
            for seconds in launches_of(row)
            if world_size > 1 and is_plausible_time(seconds)
        )
    fitted = ring.fit_ring(measured)
    if sharing and not measured:
        fitted = (
            f"every all_reduce has more ranks than the machine's {rows[0].num_cores} "
            "cores, so it measures ranks that take turns on a core and not a link"
        )
    return Links(
        device=key[0],
        fingerprint=key[1],
        num_cores=rows[0].num_cores,
        model=fitted if isinstance(fitted, RingModel) else None,
        reason=fitted if isinstance(fitted, str) else None,
        all_reduces=tuple(measured),
        all_reduces_sharing_cores=tuple(sharing),
        held_out=tuple(ring.hold_out(measured)),
    )
