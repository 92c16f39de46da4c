"""What communication costs in each environment, and what a series would do over more devices.

Every link has a latency alpha and a time for each byte beta (Hockney 1994, "The communication
challenge for MPP"). A ring reduces, then gathers p parts of n bytes in 2 (p - 1) steps of n / p, so

    t(p, n) = 2 (p - 1) alpha + 2 (p - 1) / p n beta

(Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", where adding has a term of its own; it too grows with (p - 1) / p n, so here beta holds
it). gloo reduces on such a ring, NCCL on rings or trees. Cells whose ranks share cores also measure
ranks that wait for a core, so nothing is fitted to them.

An estimate is never a measurement. The step over N devices is what one device needs for its share,
and the exposed part of the reduction: all of it at worst, and at best what is longer than the
backward pass, since no gradient is there before it begins.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from perfsuite.report.rows import Row
from perfsuite.report.scaling.series import (
    ScalingSeries,
    find_series,
    is_oversubscribed,
    is_plausible_time,
    launches_of,
)
from perfsuite.units import counted, format_bytes, format_change, format_ratio, format_seconds

Axis = Literal["world_size", "num_bytes"]

FORMULA: Final = "t(p, n) = 2 (p - 1) alpha + 2 (p - 1) / p n beta"
SOURCE: Final = "a ring, Thakur, Rabenseifner and Gropp 2005"

# Latency from two sizes n and k n whose times are about equal has sqrt(k^2 + 1) / (k - 1) times
# their relative error: 1.4 times where k is 4, 2.2 where it is 2, 15 where it is 1.1.
_LEAST_SIZE_RATIO: Final = 4
# What `all_reduce_benchmark` calls its workload.
_ALL_REDUCE: Final = "all_reduce"
# A machine of GPUs, a rack, and a cluster.
NUM_DEVICES: Final = (8, 64, 1024)

# Device and fingerprint.
EnvironmentKey = tuple[str, str | None]


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """One measured all_reduce: the bytes of each rank, and the time of the slowest."""

    world_size: int
    num_bytes: int
    time_s: float


@dataclass(frozen=True, kw_only=True)
class RingModel:
    """The parameters of a link: alpha, and beta.

    >>> print(RingModel(latency_s=1.1e-3, per_byte_s=9.4e-10))
    alpha 1.10 ms a step, beta 940 ms a GB (1.06 GB/s)
    """

    latency_s: float
    per_byte_s: float

    def __str__(self) -> str:
        beta = f"{format_seconds(self.per_byte_s * 1e9)} a GB ({1e-9 / self.per_byte_s:.3g} GB/s)"
        return f"alpha {format_seconds(self.latency_s)} a step, beta {beta}"

    def time_s(self, world_size: int, num_bytes: float, num_collectives: int = 1) -> float:
        """Seconds of all_reduces that are `num_bytes` together, one after the other.

        >>> link = RingModel(latency_s=1e-3, per_byte_s=1e-9)
        >>> link.time_s(4, 1_000_000)  # 6 steps of 1 ms, and 1.5 MB at 1 ns a byte
        0.0075
        >>> link.time_s(1, 1_000_000)
        0.0
        """
        steps = 2 * (world_size - 1)
        return num_collectives * steps * self.latency_s + steps / world_size * (
            num_bytes * self.per_byte_s
        )


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What the parameters from all other measurements say of those that share a value of an axis.

    `ratios` are predicted over measured times; empty where the others give none, for a `reason`.
    """

    axis: Axis
    value: int
    ratios: tuple[float, ...]
    reason: str | None = None


def fit_ring(measured: Sequence[AllReduce]) -> RingModel | str:
    """Return the parameters with the least squared relative errors, or why there are none.

    Each measurement is of two ranks at least. Errors are relative, because times of a few bytes
    and of many differ by orders of magnitude, and noise is in proportion to them. Divided by t,
    2 (p - 1) alpha + 2 (p - 1) / p n beta = t is linear in both.

    >>> two = [AllReduce(world_size=2, num_bytes=n, time_s=0.002 + n * 1e-9) for n in (0, 10**6)]
    >>> link = fit_ring(two)  # two ranks: 2 alpha + n beta
    >>> round(link.latency_s, 9), round(link.per_byte_s, 15)
    (0.001, 1e-09)
    >>> fit_ring(two[:1])
    'all_reduce was measured at 1 message size; parameters need 2 or more'
    """
    sizes = sorted({one.num_bytes for one in measured})
    if len(sizes) < 2:
        measured_at = counted(len(sizes), "message size")
        return f"all_reduce was measured at {measured_at}; parameters need 2 or more"
    if sizes[-1] < _LEAST_SIZE_RATIO * sizes[0]:
        return (
            f"all_reduce was measured from {format_bytes(sizes[0])} to "
            f"{format_bytes(sizes[-1])}; to separate latency from bandwidth the largest message "
            f"must be {_LEAST_SIZE_RATIO} times the smallest"
        )
    latency_s, per_byte_s = _least_squares(measured)
    if latency_s <= 0:
        return (
            "the times are in proportion to the bytes, so they show no latency; measure "
            f"messages below {format_bytes(sizes[0])}"
        )
    if per_byte_s <= 0:
        return (
            "the times do not grow with the bytes, so they show no bandwidth; measure "
            f"messages above {format_bytes(sizes[-1])}"
        )
    return RingModel(latency_s=latency_s, per_byte_s=per_byte_s)


def hold_out(measured: Sequence[AllReduce]) -> Iterator[HeldOut]:
    """Yield what the rest says of each world size, then of each message size, left out in turn."""
    axes: tuple[Axis, ...] = ("world_size", "num_bytes")
    for axis in axes:
        value_of: Callable[[AllReduce], int] = attrgetter(axis)
        values = sorted(set(map(value_of, measured)))
        for value in values if len(values) > 1 else ():
            fitted = fit_ring([one for one in measured if value_of(one) != value])
            if isinstance(fitted, str):
                yield HeldOut(axis=axis, value=value, ratios=(), reason=fitted)
            else:
                left_out = [one for one in measured if value_of(one) == value]
                yield HeldOut(axis=axis, value=value, ratios=prediction_ratios(fitted, left_out))


def prediction_ratios(model: RingModel, measured: Sequence[AllReduce]) -> tuple[float, ...]:
    """Return predicted over measured time of each measurement.

    >>> link = RingModel(latency_s=1e-3, per_byte_s=1e-9)
    >>> prediction_ratios(link, [AllReduce(world_size=2, num_bytes=2_000_000, time_s=0.005)])
    (0.8,)
    """
    return tuple(model.time_s(one.world_size, one.num_bytes) / one.time_s for one in measured)


def describe_errors(ratios: Sequence[float]) -> tuple[str, str, str]:
    """Return how many predictions there are, by how much half of them err, and the worst.

    >>> describe_errors([1.5, 0.5, 1.0])
    ('3', '50.0 %', '-50.0 %')
    """

    def size(ratio: float) -> float:
        return abs(math.log(ratio))

    half = math.exp(statistics.median(map(size, ratios)))
    return str(len(ratios)), format_ratio(half - 1), format_change(max(ratios, key=size))


def _least_squares(measured: Sequence[AllReduce]) -> tuple[float, float]:
    """Alpha and beta with the least squared relative errors; may be below 0."""
    # Imported here, because most reports have no all_reduce to fit.
    from scipy.linalg import lstsq

    largest = max(one.num_bytes for one in measured)
    rows = []
    for one in measured:
        weight = 2 * (one.world_size - 1) / one.time_s
        rows.append((weight, weight * (one.num_bytes / largest / one.world_size)))
    (latency_s, largest_s), *_ = lstsq(rows, [1.0] * len(rows))
    return float(latency_s), float(largest_s) / largest


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
    fitted = fit_ring(measured)
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
        held_out=tuple(hold_out(measured)),
    )
