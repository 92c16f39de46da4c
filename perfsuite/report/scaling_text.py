"""Scaling in words and tables: what was measured, how far the model errs, what it estimates.

Every estimate is called one. Must not know any format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from perfsuite.report.estimates import Scaling
from perfsuite.report.links import Links
from perfsuite.report.ring import (
    NoModel,
    Reduction,
    RingModel,
    describe,
    prediction_ratios,
    typical_factor,
    worst,
)
from perfsuite.report.rows import NOTHING
from perfsuite.report.scaling import Point, ScaledCell, Series
from perfsuite.report.sections import Grid
from perfsuite.units import (
    format_bytes,
    format_change,
    format_count,
    format_ratio,
    format_seconds,
)

# More nobody reads through; all of them are in the files beside the page.
_MOST_ROWS: Final = 200
FORMULA: Final = "t(p, n) = 2 (p - 1) alpha + 2 (p - 1) / p n beta"
SOURCE: Final = "a ring, Thakur, Rabenseifner and Gropp 2005"

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
    ("shared cores", False),
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


def scaling_notes(scaling: Scaling) -> tuple[str, ...]:
    """Return what the numbers do not say by themselves, a sentence or two each."""
    return (
        *(_series_notes(scaling.series) if scaling.series else ()),
        *(_link_note(links) for links in scaling.links.values()),
        *(_estimate_notes(scaling)),
    )


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
                NOTHING if expected is None else _between(expected.efficiency),
                _shared_cores(point) if point.cell.shares_cores else "",
            )


def _efficiency(point: Point, series: Series) -> tuple[str, str, str]:
    interval = point.efficiency
    if interval is None:
        return "base", NOTHING, NOTHING
    if not math.isfinite(interval.high):
        return format_ratio(interval.centre), NOTHING, "one round"
    return (
        format_ratio(interval.centre),
        _between((interval.low, interval.high)),
        interval_basis(point.cell, series.base.cell),
    )


def interval_basis(cell: ScaledCell, base: ScaledCell) -> str:
    """Return what the interval of a cell's efficiency covers: of the cell, and of the base."""
    return " and ".join(f"{len(one.samples_s)} {one.basis}" for one in (cell, base))


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
                _between(one.efficiency),
            )


def _series_notes(series: Sequence[Series]) -> Iterator[str]:
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
            "Exposed is the part of the step that waits for communication or for a slower rank: "
            "by how much backward, where ddp waits, is longer than forward, which does not, lets "
            "expect from one process: backward(p) - forward(p) backward(1) / forward(1)."
        )
    yield from _core_notes(series)


def _core_notes(series: Sequence[Series]) -> Iterator[str]:
    """Which cells had more processes than cores, by that rule alone, and what shows it."""
    points = [point for one in series for point in one.points]
    sizes = dict.fromkeys(_shared_cores(point) for point in points if point.cell.shares_cores)
    for size in sizes:
        # Of equal batches: a smaller one has more overhead for a sample.
        ratios = [
            point.forward_ratio
            for one in series
            for point in one.points
            if one.kind == "weak" and _shared_cores(point) == size
            if point.forward_ratio is not None
        ]
        shown = (
            f"; forward, which talks to nobody, takes {format_span(ratios)} times as long as on "
            "one process"
            if ratios
            else ""
        )
        yield (
            f"{size}, loader workers included: they take turns, so that their efficiency measures "
            f"the sharing of cores and not of links{shown}."
        )
    if any(_may_share_cores(point) for point in points):
        yield "How many cores the machine has is not known, so ranks may share them."


def _may_share_cores(point: Point) -> bool:
    row = point.cell.rows[0]
    return row.num_cores is None and row.record is not None and row.record.device == "cpu"


def _shared_cores(point: Point) -> str:
    return f"{point.cell.num_processes} processes on {point.cell.rows[0].num_cores} cores"


def _link_note(links: Links) -> str:
    if isinstance(links.fitted, NoModel):
        return f"No cost model for {links.device}: {links.fitted.reason}."
    sizes = [reduction.num_bytes for reduction in links.reductions]
    ranks = " and ".join(map(str, links.world_sizes))
    note = (
        f"Cost model for {links.device}: {FORMULA} ({SOURCE}; beta holds the adding too) with "
        f"{describe(links.fitted)}, from {len(sizes)} launches of all_reduce over {ranks} ranks, "
        f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}."
    )
    ratios = [ratio for held_out in links.held_out for ratio in held_out.ratios]
    if ratios:
        typical = format_ratio(typical_factor(ratios) - 1)
        note += (
            f" Of measurements left out in turn, half were predicted within {typical}, the worst "
            f"with {format_change(worst(ratios))}."
        )
    if len(links.world_sizes) == 1:
        note += " From one number of ranks nothing says how it grows with them."
    return note


def _estimate_notes(scaling: Scaling) -> Iterator[str]:
    if any(scaling.estimates(series) for series in scaling.series):
        yield (
            "By the model means a step of one process and the sums over ranks, from nothing of "
            "them hidden to as much as fits behind the backward pass. Over more devices than were "
            "measured that is an estimate: it takes every link to be like those measured, and "
            "nothing else to get slower."
        )


def format_span(ratios: Sequence[float]) -> str:
    """Return the smallest and the largest of at least one factor.

    >>> format_span([2.5, 2.0]), format_span([2.0])
    ('2.00 to 2.50', '2.00')
    """
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios))))


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else format_ratio(ratio)


def _between(bounds: tuple[float, float]) -> str:
    return " to ".join(map(format_ratio, bounds))
