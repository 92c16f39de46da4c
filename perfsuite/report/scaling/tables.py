"""Scaling as tables: what was measured, how far the model errs, what it estimates.

Measurements and estimates are never in one table. Must not know any format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from perfsuite.report.charts.sections import Grid
from perfsuite.report.rows import NOTHING
from perfsuite.report.scaling.estimates import NUM_DEVICES, Scaling
from perfsuite.report.scaling.links import Links
from perfsuite.report.scaling.ring import (
    Reduction,
    RingModel,
    prediction_ratios,
    typical_factor,
    worst,
)
from perfsuite.report.scaling.series import Point, ScaledCell, Series
from perfsuite.units import format_bytes, format_change, format_count, format_ratio, format_seconds

# More nobody reads through; all of them are in the files beside the page.
_MOST_ROWS: Final = 200

_MEASURED_COLUMNS: Final = (
    ("scaling", False),
    ("cell", False),
    ("batch", False),
    ("over", False),
    ("step", True),
    ("samples/s", True),
    ("efficiency", True),
    ("between", True),
    ("interval over", False),
    ("exposed", True),
    ("forward", True),
    ("by the model", True),
    ("cores", False),
)
_HELD_OUT_COLUMNS: Final = (
    ("device", False),
    ("left out", False),
    ("measurements", True),
    ("half err by less than", True),
    ("worst", True),
    ("no prediction", False),
)
_ESTIMATE_COLUMNS: Final = (
    ("scaling", False),
    ("cell", False),
    ("batch", False),
    ("estimated over", True),
    ("all_reduce", True),
    ("step", True),
    ("efficiency", True),
)


def scaling_grids(scaling: Scaling) -> tuple[Grid, ...]:
    """Return the tables, those with rows."""
    grids = (
        ("Weak and strong scaling, measured", _MEASURED_COLUMNS, _measured_rows(scaling)),
        (
            "The model against measurements that it was not fitted to",
            _HELD_OUT_COLUMNS,
            _held_out_rows(scaling),
        ),
        ("Estimates by the model, not measured", _ESTIMATE_COLUMNS, _estimate_rows(scaling)),
    )
    found = (_grid(title, columns, list(rows)) for title, columns, rows in grids)
    return tuple(grid for grid in found if grid.rows)


def _grid(
    title: str, columns: tuple[tuple[str, bool], ...], rows: Sequence[tuple[str, ...]]
) -> Grid:
    left_out = len(rows) - _MOST_ROWS
    if left_out > 0:
        title += f", without {left_out} rows that scaling.csv has"
    return Grid(title=title, columns=columns, rows=tuple(rows[:_MOST_ROWS]))


def _measured_rows(scaling: Scaling) -> Iterator[tuple[str, ...]]:
    for series in scaling.series:
        for point in (series.base, *series.points):
            expected = scaling.expect(series, point)
            yield (
                series.kind,
                series.name,
                series.batch_name,
                point.cell.parallel,
                format_seconds(point.cell.step_time_s),
                format_count(point.cell.samples_per_s),
                *_efficiency(point, series),
                _ratio(point.exposed_ratio),
                NOTHING if point.forward_ratio is None else f"{point.forward_ratio:.2f}x",
                NOTHING if expected is None else _span(expected.efficiency),
                _shared_cores(point.cell) if point.cell.shares_cores else "",
            )


def _efficiency(point: Point, series: Series) -> tuple[str, str, str]:
    interval = point.efficiency
    if interval is None:
        return "base", NOTHING, NOTHING
    if not math.isfinite(interval.high):
        return format_ratio(interval.centre), NOTHING, "one round"
    return (
        format_ratio(interval.centre),
        f"{format_ratio(interval.low)} and {format_ratio(interval.high)}",
        interval_basis(point.cell, series.base.cell),
    )


def interval_basis(cell: ScaledCell, base: ScaledCell) -> str:
    """Return what the interval of a cell's efficiency covers: of the cell, and of the base."""
    mine, its = len(cell.samples_s), len(base.samples_s)
    if cell.basis == base.basis:
        return f"{mine} and {its} {cell.basis}"
    return f"{mine} {cell.basis} and {its} {base.basis}"


def _held_out_rows(scaling: Scaling) -> Iterator[tuple[str, ...]]:
    for links in scaling.links.values():
        for held_out in links.held_out:
            what = (
                f"{held_out.value} ranks"
                if held_out.axis == "world_size"
                else format_bytes(held_out.value)
            )
            yield _errors(links, what, held_out.ratios, held_out.reason)
        if isinstance(links.fitted, RingModel):
            for world_size, reductions in _by_world_size(links.sharing):
                ratios = prediction_ratios(links.fitted, reductions)
                what = f"{world_size} ranks on {links.num_cores} cores, in no fit"
                yield _errors(links, what, ratios, None)


def _errors(
    links: Links, what: str, ratios: Sequence[float], reason: str | None
) -> tuple[str, ...]:
    if not ratios:
        return links.device, what, NOTHING, NOTHING, NOTHING, reason or ""
    typical = format_ratio(typical_factor(ratios) - 1)
    return links.device, what, str(len(ratios)), typical, format_change(worst(ratios)), ""


def _by_world_size(reductions: Sequence[Reduction]) -> list[tuple[int, list[Reduction]]]:
    sizes = sorted({reduction.world_size for reduction in reductions})
    return [(size, [one for one in reductions if one.world_size == size]) for size in sizes]


def _estimate_rows(scaling: Scaling) -> Iterator[tuple[str, ...]]:
    for series in scaling.series:
        for one in scaling.estimates(series):
            yield (
                series.kind,
                series.name,
                series.batch_name,
                f"{one.num_devices} devices",
                format_seconds(one.all_reduce_s),
                " to ".join(map(format_seconds, one.step_time_s)),
                _span(one.efficiency),
            )
    for links in scaling.links.values():
        if isinstance(links.fitted, RingModel):
            yield from _bare_estimates(links, links.fitted)


def _bare_estimates(links: Links, model: RingModel) -> Iterator[tuple[str, ...]]:
    """Of the largest message that was measured."""
    num_bytes = max(reduction.num_bytes for reduction in links.reductions)
    for num_devices in NUM_DEVICES:
        if num_devices not in links.world_sizes:
            yield (
                NOTHING,
                f"all_reduce on {links.device}",
                format_bytes(num_bytes),
                f"{num_devices} devices",
                format_seconds(model.time_s(num_devices, num_bytes)),
                NOTHING,
                NOTHING,
            )


def _shared_cores(cell: ScaledCell) -> str:
    return f"{cell.num_processes} on {cell.rows[0].num_cores}"


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else format_ratio(ratio)


def _span(bounds: tuple[float, float]) -> str:
    return " to ".join(map(format_ratio, bounds))
