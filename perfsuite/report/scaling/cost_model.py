"""What communication costs in each environment: a ring, fitted to the cells of bare all_reduces.

The model and its sources: decision 0015.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, get_args

from perfsuite.report.rows import Row
from perfsuite.units import counted, format_bytes, format_seconds

Axis = Literal["world_size", "num_bytes"]

FORMULA = "t(p, n) = 2 (p - 1) alpha + 2 (p - 1) / p n beta"
SOURCE = "a ring, Thakur, Rabenseifner and Gropp 2005"

# Latency from two sizes n and k n whose times are about equal has sqrt(k^2 + 1) / (k - 1) times
# their relative error: 1.4 times where k is 4, 2.2 where it is 2, 15 where it is 1.1.
_LEAST_SIZE_RATIO = 4
# What `all_reduce_benchmark` calls its workload.
_ALL_REDUCE = "all_reduce"

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
    """The parameters of a link: alpha, and beta."""

    latency_s: float
    per_byte_s: float

    def __str__(self) -> str:
        beta = f"{format_seconds(self.per_byte_s * 1e9)} a GB ({1e-9 / self.per_byte_s:.3g} GB/s)"
        return f"alpha {format_seconds(self.latency_s)} a step, beta {beta}"

    def time_s(self, world_size: int, num_bytes: float, num_collectives: int = 1) -> float:
        """Seconds of all_reduces that are `num_bytes` together, one after the other."""
        steps = 2 * (world_size - 1)
        transfer_s = steps / world_size * (num_bytes * self.per_byte_s)
        return num_collectives * steps * self.latency_s + transfer_s


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What the parameters from all other measurements say of those that share an axis's value."""

    axis: Axis
    value: int
    ratios: tuple[float, ...]  # predicted over measured times; empty where the others give none
    reason: str | None = None  # why they give none


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links of one environment; the names of the fields are those of scaling.json."""

    device: str
    fingerprint: str | None
    num_cores: int | None
    model: RingModel | None
    reason: str | None  # why there is no model
    all_reduces: tuple[AllReduce, ...]  # one for each launch; the model is fitted to them
    all_reduces_sharing_cores: tuple[AllReduce, ...]
    held_out: tuple[HeldOut, ...]  # predictions of those that were left out in turn

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Of the measurements that the model is fitted to, in order."""
        return tuple(sorted({one.world_size for one in self.all_reduces}))


def find_links(rows: Sequence[Row]) -> dict[EnvironmentKey, Links]:
    """Return the links of each environment with a cell that is one all_reduce."""
    reduced: dict[EnvironmentKey, list[tuple[Row, list[AllReduce]]]] = {}
    for row in rows:
        if (found := _all_reduces(row)) is not None:
            reduced.setdefault(environment_of(row), []).append((row, found))
    return {key: _links(key, cells) for key, cells in reduced.items()}


def environment_of(row: Row) -> EnvironmentKey:
    """Return where a cell of ours ran."""
    assert row.record is not None
    return row.record.device, row.record.fingerprint


def _all_reduces(row: Row) -> list[AllReduce] | None:
    """The launches of a cell that is one all_reduce; a user's workload of that name has samples."""
    if (record := row.record) is None or row.recipe is None or record.workload != _ALL_REDUCE:
        return None
    num_bytes, world_size = record.counts.collective_bytes, row.recipe.plan.world_size
    if record.samples_per_s is not None or record.counts.collectives != 1 or num_bytes is None:
        return None
    times_s = row.launches_s if world_size > 1 else ()
    return [AllReduce(world_size=world_size, num_bytes=num_bytes, time_s=one) for one in times_s]


def _links(key: EnvironmentKey, cells: Sequence[tuple[Row, list[AllReduce]]]) -> Links:
    launches = [(one, row.shares_cores(one.world_size)) for row, found in cells for one in found]
    measured = tuple(one for one, shares_cores in launches if not shares_cores)
    sharing = tuple(one for one, shares_cores in launches if shares_cores)
    num_cores = cells[0][0].num_cores
    fitted = fit_ring(measured)
    if sharing and not measured:
        fitted = f"every all_reduce has more ranks than the machine's {num_cores} cores, "
        fitted += "so it measures ranks that take turns on a core and not a link"
    return Links(
        device=key[0],
        fingerprint=key[1],
        num_cores=num_cores,
        model=fitted if isinstance(fitted, RingModel) else None,
        reason=fitted if isinstance(fitted, str) else None,
        all_reduces=measured,
        all_reduces_sharing_cores=sharing,
        held_out=tuple(hold_out(measured)),
    )


def fit_ring(measured: Sequence[AllReduce]) -> RingModel | str:
    """Return the parameters with the least squared relative errors, or why there are none.

    Each measurement is of two ranks at least. Errors are relative, because times of a few bytes
    and of many differ by orders of magnitude, and noise is in proportion to them. Divided by t,
    2 (p - 1) alpha + 2 (p - 1) / p n beta = t is linear in both.
    """
    sizes = sorted({one.num_bytes for one in measured})
    if len(sizes) < 2:
        measured_at = counted(len(sizes), "message size")
        return f"all_reduce was measured at {measured_at}; parameters need 2 or more"
    least, most = format_bytes(sizes[0]), format_bytes(sizes[-1])
    if sizes[-1] < _LEAST_SIZE_RATIO * sizes[0]:
        shown = f"all_reduce was measured from {least} to {most}"
        needed = f"the largest message must be {_LEAST_SIZE_RATIO} times the smallest"
        return f"{shown}; to separate latency from bandwidth {needed}"
    # Imported here, because most reports have no all_reduce to fit.
    from scipy.linalg import lstsq

    weights = [2 * (one.world_size - 1) / one.time_s for one in measured]
    shares = (one.num_bytes / sizes[-1] / one.world_size for one in measured)
    rows = [(weight, weight * share) for weight, share in zip(weights, shares, strict=True)]
    (latency_s, largest_s), *_ = lstsq(rows, [1.0] * len(rows))
    per_byte_s = float(largest_s) / sizes[-1]
    if latency_s <= 0:
        shown = "the times are in proportion to the bytes, so they show no latency"
        return f"{shown}; measure messages below {least}"
    if per_byte_s <= 0:
        shown = "the times do not grow with the bytes, so they show no bandwidth"
        return f"{shown}; measure messages above {most}"
    return RingModel(latency_s=float(latency_s), per_byte_s=per_byte_s)


def hold_out(measured: Sequence[AllReduce]) -> Iterator[HeldOut]:
    """Yield what the rest says of each world size, then of each message size, left out in turn."""
    for axis in get_args(Axis):
        value_of = attrgetter(axis)
        values = sorted(set(map(value_of, measured)))
        for value in values if len(values) > 1 else ():
            fitted = fit_ring([one for one in measured if value_of(one) != value])
            if isinstance(fitted, str):
                yield HeldOut(axis=axis, value=value, ratios=(), reason=fitted)
            else:
                left_out = [one for one in measured if value_of(one) == value]
                yield HeldOut(axis=axis, value=value, ratios=prediction_ratios(fitted, left_out))


def prediction_ratios(model: RingModel, measured: Sequence[AllReduce]) -> tuple[float, ...]:
    """Return predicted over measured time of each measurement."""
    return tuple(model.time_s(one.world_size, one.num_bytes) / one.time_s for one in measured)
