"""Scaling as tables, as JSON and in sentences: measurements, errors of the model, estimates.

Measurements and estimates are never in one table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from perfsuite.report.charts.sections import Grid, grid_of
from perfsuite.report.rows import Column
from perfsuite.report.scaling.cost_model import NUM_DEVICES, Estimate, Links, Scaling
from perfsuite.report.scaling.ring import (
    FORMULA,
    SOURCE,
    NoModel,
    RingModel,
    describe,
    median_error_factor,
    prediction_ratios,
    worst_ratio,
)
from perfsuite.report.scaling.series import ScaledCell, ScalingPoint, ScalingSeries
from perfsuite.units import format_bytes, format_change, format_count, format_ratio, format_seconds

SCHEMA: Final = 1
# More rows are not worth reading through; all of them are in the file beside the page.
_MOST_ROWS: Final = 200

T = TypeVar("T")


@dataclass(frozen=True)
class _Measured:
    """One cell of a series, with what the model says of it."""

    series: ScalingSeries
    point: ScalingPoint
    expected: Estimate | None

    @property
    def cell(self) -> ScaledCell:
        return self.point.cell

    @property
    def efficiency(self) -> float | None:
        return None if self.point.efficiency is None else self.point.efficiency.centre

    @property
    def bounds(self) -> tuple[float, float] | None:
        interval = self.point.efficiency
        if interval is None or not math.isfinite(interval.high):
            return None
        return interval.low, interval.high

    @property
    def basis(self) -> str | None:
        """What the interval covers: of the cell, and of the base."""
        if self.point.efficiency is None:
            return None
        base = self.series.base.cell
        num, num_of_base = len(self.cell.samples_s), len(base.samples_s)
        if self.cell.basis == base.basis:
            return f"{num} and {num_of_base} {base.basis}"
        return f"{num} {self.cell.basis} and {num_of_base} {base.basis}"

    @property
    def cores(self) -> str:
        return f"{self.cell.num_processes} on {self.cell.rows[0].num_cores}"


@dataclass(frozen=True)
class _Predicted:
    """Measurements that are in no fit, and predicted over measured time of each."""

    device: str
    left_out: str
    ratios: tuple[float, ...]
    reason: str | None = None


@dataclass(frozen=True)
class _Estimated:
    """An estimate, of a step or of a bare all_reduce."""

    num_devices: int
    all_reduce_s: float
    cell: str
    batch: str
    kind: str | None = None
    step: Estimate | None = None


def _write_range(bounds: tuple[float, float]) -> str:
    return " to ".join(map(format_ratio, bounds))


# A column without a key is in the table alone, one without a title in the JSON alone.
_MEASURED: Final[tuple[Column[_Measured], ...]] = (
    Column("", "scaling", lambda one: one.series.kind, is_number=False),
    Column("", "cell", lambda one: one.series.name, is_number=False),
    Column("", "batch", lambda one: one.series.batch_name, is_number=False),
    Column("parallel", "over", lambda one: one.cell.recipe.parallel, is_number=False),
    Column("num_devices", "", lambda one: one.cell.num_devices),
    Column("step_time_s", "step", lambda one: one.cell.step_time_s, format_seconds),
    Column("samples_per_s", "samples/s", lambda one: one.cell.samples_per_s, format_count),
    Column(
        "efficiency_ratio", "efficiency", lambda one: one.efficiency, format_ratio, missing="base"
    ),
    Column(
        "interval_ratio",
        "between",
        lambda one: one.bounds,
        lambda bounds: " and ".join(map(format_ratio, bounds)),
    ),
    Column("interval_over", "interval over", lambda one: one.basis, is_number=False),
    Column("exposed_ratio", "exposed", lambda one: one.point.exposed_ratio, format_ratio),
    Column("forward_ratio", "forward", lambda one: one.point.forward_ratio, "{:.2f}x".format),
    Column("num_processes", "", lambda one: one.cell.num_processes),
    Column("num_cores", "", lambda one: one.series.row.num_cores),
    Column("shares_cores", "", lambda one: one.cell.shares_cores),
    Column(
        "by_the_model",
        "by the model",
        lambda one: None if one.expected is None else asdict(one.expected),
        lambda expected: _write_range(expected["efficiency"]),
    ),
    Column("", "cores", lambda one: one.cores if one.cell.shares_cores else "", is_number=False),
)
_PREDICTED: Final[tuple[Column[_Predicted], ...]] = (
    Column("", "device", lambda one: one.device, is_number=False),
    Column("", "left out", lambda one: one.left_out, is_number=False),
    Column("", "measurements", lambda one: len(one.ratios) or None),
    Column(
        "",
        "half err by less than",
        lambda one: one.ratios or None,
        lambda ratios: format_ratio(median_error_factor(ratios) - 1),
    ),
    Column(
        "",
        "worst",
        lambda one: one.ratios or None,
        lambda ratios: format_change(worst_ratio(ratios)),
    ),
    Column("", "no prediction", lambda one: one.reason or "", is_number=False),
)
_ESTIMATED: Final[tuple[Column[_Estimated], ...]] = (
    Column("", "scaling", lambda one: one.kind, is_number=False),
    Column("", "cell", lambda one: one.cell, is_number=False),
    Column("", "batch", lambda one: one.batch, is_number=False),
    Column("", "estimated over", lambda one: f"{one.num_devices} devices"),
    Column("", "all_reduce", lambda one: one.all_reduce_s, format_seconds),
    Column(
        "",
        "step",
        lambda one: one.step and one.step.step_time_s,
        lambda bounds: " to ".join(map(format_seconds, bounds)),
    ),
    Column("", "efficiency", lambda one: one.step and one.step.efficiency, _write_range),
)


def scaling_grids(scaling: Scaling) -> tuple[Grid, ...]:
    """Return the tables, those with rows."""
    measured = [one for series in scaling.series for one in _measured(scaling, series)]
    shown = [column for column in _MEASURED if column.title]
    grids = (
        _grid("Weak and strong scaling, measured", shown, measured),
        _grid(
            "The model against measurements that it was not fitted to",
            _PREDICTED,
            [one for links in scaling.links.values() for one in _predicted(links)],
        ),
        _grid("Estimates by the model, not measured", _ESTIMATED, list(_estimated(scaling))),
    )
    return tuple(grid for grid in grids if grid.rows)


def scaling_document(scaling: Scaling) -> dict[str, Any]:
    """Return everything for JSON, in base units: series, models, their errors and estimates.

    An unknown value is None.
    """
    return {
        "schema": SCHEMA,
        "formula": FORMULA,
        "source": SOURCE,
        "links": [_links_document(links) for links in scaling.links.values()],
        "series": [_series_document(scaling, series) for series in scaling.series],
    }


def _links_document(links: Links) -> dict[str, Any]:
    fitted = links.fitted
    return {
        "device": links.device,
        "fingerprint": links.fingerprint,
        "num_cores": links.num_cores,
        "model": None if isinstance(fitted, NoModel) else asdict(fitted),
        "reason": fitted.reason if isinstance(fitted, NoModel) else None,
        "all_reduces": [asdict(one) for one in links.all_reduces],
        "all_reduces_sharing_cores": [asdict(one) for one in links.oversubscribed],
        "held_out": [asdict(one) for one in links.held_out],
    }


def _series_document(scaling: Scaling, series: ScalingSeries) -> dict[str, Any]:
    kept = [column for column in _MEASURED if column.key]
    return {
        "scaling": series.kind,
        "cell": series.name,
        "mode": series.mode,
        "batch": float(series.batch),
        "measured": [
            {column.key: column.value(one) for column in kept} for one in _measured(scaling, series)
        ],
        "estimates": [asdict(one) for one in scaling.estimates(series)],
    }


def _grid(title: str, columns: Sequence[Column[T]], rows: Sequence[T]) -> Grid:
    left_out = len(rows) - _MOST_ROWS
    if left_out > 0:
        title += f", without {left_out} rows that scaling.json has"
    return grid_of(title, columns, rows[:_MOST_ROWS])


def _measured(scaling: Scaling, series: ScalingSeries) -> Iterator[_Measured]:
    for point in (series.base, *series.points):
        yield _Measured(series, point, scaling.expect(series, point))


def _predicted(links: Links) -> Iterator[_Predicted]:
    for one in links.held_out:
        is_size = one.axis == "world_size"
        left_out = f"{one.value} ranks" if is_size else format_bytes(one.value)
        yield _Predicted(links.device, left_out, one.ratios, one.reason)
    if isinstance(links.fitted, RingModel):
        for world_size in sorted({one.world_size for one in links.oversubscribed}):
            measured = [one for one in links.oversubscribed if one.world_size == world_size]
            ratios = prediction_ratios(links.fitted, measured)
            left_out = f"{world_size} ranks on {links.num_cores} cores, in no fit"
            yield _Predicted(links.device, left_out, ratios)


def _estimated(scaling: Scaling) -> Iterator[_Estimated]:
    """Estimates of steps, and then of the largest bare all_reduce that was measured."""
    for series in scaling.series:
        for one in scaling.estimates(series):
            yield _Estimated(
                one.num_devices, one.all_reduce_s, series.name, series.batch_name, series.kind, one
            )
    for links in scaling.links.values():
        if isinstance(links.fitted, RingModel):
            num_bytes = max(one.num_bytes for one in links.all_reduces)
            for num in NUM_DEVICES:
                if num not in links.world_sizes:
                    seconds = links.fitted.time_s(num, num_bytes)
                    name = f"all_reduce on {links.device}"
                    yield _Estimated(num, seconds, name, format_bytes(num_bytes))


def scaling_notes(scaling: Scaling) -> tuple[str, ...]:
    """Return what the numbers do not say by themselves, a sentence or two each."""
    return (
        *(_series_notes(scaling.series) if scaling.series else ()),
        *map(_link_note, scaling.links.values()),
        *_estimate_notes(scaling),
    )


def _series_notes(series: Sequence[ScalingSeries]) -> Iterator[str]:
    points = [point for one in series for point in one.points]
    yield (
        "Efficiency is the samples per second of a device over those of one process (of the "
        "fewest devices where that was not measured). Weak scaling keeps the batch of a device, "
        "strong scaling that of all devices together. Forward is the time of the forward pass for "
        "a sample of a device, against the same."
    )
    bases = {cell.basis for one in series for cell in one.cells}
    if "launches" in bases:
        yield (
            "An interval over launches is Welch's at 95 %, on logarithms: it covers how launches "
            "of a cell differ on this machine, and not how machines do."
        )
    if "rounds" in bases:
        yield (
            "An interval over rounds covers how the rounds of one launch differ, and not how two "
            "launches do, which can be several times as much; several tests of one recipe, or "
            "several runs of one commit, are several launches."
        )
    if any(point.exposed_ratio is not None for point in points):
        yield (
            "Exposed is the part of the step that waits for communication or for a slower rank. "
            "Under ddp backward waits and forward does not, so it is what backward takes beyond "
            "its proportion on one process: backward(p) - forward(p) backward(1) / forward(1)."
        )
    yield from _core_notes(series)


def _core_notes(series: Sequence[ScalingSeries]) -> Iterator[str]:
    """Which cells had more processes than cores, by that rule alone, and what shows it."""
    pairs = [(one, point) for one in series for point in one.points]
    for size in dict.fromkeys(_sharing(point) for _, point in pairs if point.cell.shares_cores):
        # Of equal batches: a smaller one has more overhead for a sample.
        ratios = [
            point.forward_ratio
            for one, point in pairs
            if one.kind == "weak" and _sharing(point) == size and point.forward_ratio is not None
        ]
        shown = ""
        if ratios:
            ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
            shown = (
                f"; forward, which does not communicate, takes {' to '.join(ends)} times as long "
                "as on one process"
            )
        yield (
            f"{size}, loader workers included: they take turns, so that their efficiency measures "
            f"the sharing of cores and not of links{shown}."
        )
    rows = [point.cell.rows[0] for _, point in pairs]
    if any(row.num_cores is None and row.record and row.record.device == "cpu" for row in rows):
        yield "How many cores the machine has is not known, so ranks may share them."


def _sharing(point: ScalingPoint) -> str:
    return f"{point.cell.num_processes} processes on {point.cell.rows[0].num_cores} cores"


def _link_note(links: Links) -> str:
    if isinstance(links.fitted, NoModel):
        return f"No cost model for {links.device}: {links.fitted.reason}."
    sizes = [one.num_bytes for one in links.all_reduces]
    ranks = " and ".join(map(str, links.world_sizes))
    note = (
        f"Cost model for {links.device}: {FORMULA} ({SOURCE}; beta includes the additions) with "
        f"{describe(links.fitted)}, from {len(sizes)} launches of all_reduce over {ranks} ranks, "
        f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}."
    )
    ratios = [ratio for held_out in links.held_out for ratio in held_out.ratios]
    if ratios:
        typical = format_ratio(median_error_factor(ratios) - 1)
        note += (
            f" Of measurements left out in turn, half were predicted within {typical}, the worst "
            f"with {format_change(worst_ratio(ratios))}."
        )
    if len(links.world_sizes) == 1:
        note += " Measurements of one number of ranks do not show how the cost grows with ranks."
    return note


def _estimate_notes(scaling: Scaling) -> Iterator[str]:
    if any(scaling.estimates(series) for series in scaling.series):
        yield (
            "By the model a step takes as long as on one process, and then its all_reduces: all "
            "of them without overlap, and at best what does not fit behind the backward pass. "
            "Over more devices than were measured this is an estimate: it assumes that every link "
            "is like those measured, and that nothing else gets slower."
        )
