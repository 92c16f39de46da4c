"""Scaling as charts: throughput, efficiency with what the model says, and the model itself.

Must not know any format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from perfsuite.report.charts.axes import logarithmic
from perfsuite.report.charts.line_chart import Line, draw
from perfsuite.report.charts.pictures import Picture
from perfsuite.report.charts.sections import Section, draw_each
from perfsuite.report.scaling.estimates import NUM_DEVICES, Scaling
from perfsuite.report.scaling.links import Links, environment_of
from perfsuite.report.scaling.notes import scaling_notes
from perfsuite.report.scaling.ring import Reduction, RingModel
from perfsuite.report.scaling.series import Series
from perfsuite.report.scaling.tables import scaling_grids
from perfsuite.units import format_bytes, format_count, format_ratio, format_seconds

_TITLE: Final = "Scaling"


def draw_scaling(scaling: Scaling) -> tuple[Section, ...]:
    """Return the section on scaling; nothing where no cell says anything of it."""
    if not scaling.series and not scaling.links:
        return ()
    by_batch: dict[tuple[object, ...], list[Series]] = {}
    for one in scaling.series:
        key = one.kind, one.name, one.batch, environment_of(one.row)
        by_batch.setdefault(key, []).append(one)
    groups = list(by_batch.values())
    throughputs, num_left_out = draw_each(_throughput, groups)
    efficiencies, _ = draw_each(lambda group: _efficiency(scaling, group), groups)
    models, _ = draw_each(_model, list(scaling.links.values()))
    return (
        Section(
            title=_TITLE,
            charts=(*models, *throughputs, *efficiencies),
            num_left_out=num_left_out,
            notes=scaling_notes(scaling),
            grids=scaling_grids(scaling),
        ),
    )


def _title(group: Sequence[Series]) -> str:
    return f"{group[0].kind}: {group[0].name}, {group[0].batch_name}"


def _throughput(group: Sequence[Series]) -> Picture:
    lines = [
        Line(
            name=series.mode,
            points=tuple((float(cell.num_devices), cell.samples_per_s) for cell in series.cells),
        )
        for series in group
    ]
    first_x, first_y = lines[0].points[0]
    widest = max(x for line in lines for x, _ in line.points)
    ideal = Line(
        name=f"ideal, in proportion to {first_x:.0f}",
        points=((first_x, first_y), (widest, first_y * widest / first_x)),
        is_ideal=True,
    )
    return draw([*lines, ideal], _TITLE, _title(group), ("devices", "samples/s"), format_count)


def _efficiency(scaling: Scaling, group: Sequence[Series]) -> Picture:
    lines = [_efficiency_line(series) for series in group]
    for series in group:
        lines += _model_lines(scaling, series)
    xs = [x for line in lines for x, _ in line.points]
    is_wide = max(xs) > max(x for line in lines[: len(group)] for x, _ in line.points)
    return draw(
        lines,
        _TITLE,
        _title(group),
        ("devices", "efficiency"),
        format_ratio,
        x_axis=logarithmic(xs, base=2) if is_wide else None,
    )


def _efficiency_line(series: Series) -> Line:
    points = [(float(series.base.cell.num_devices), 1.0)]
    whiskers = [(1.0, 1.0)]
    for point in series.points:
        interval = point.efficiency
        assert interval is not None
        points.append((float(point.cell.num_devices), interval.centre))
        is_known = math.isfinite(interval.high)
        ends = (interval.low, interval.high) if is_known else (interval.centre,) * 2
        whiskers.append(ends)
    return Line(name=series.mode, points=tuple(points), whiskers=tuple(whiskers))


def _model_lines(scaling: Scaling, series: Series) -> list[Line]:
    measured = sorted({point.cell.num_devices for point in series.points})
    nums = [*measured, *(num for num in NUM_DEVICES if num > measured[-1])]
    found = [one for num in nums if (one := scaling.predict(series, num)) is not None]
    if not found:
        return []
    return [
        Line(
            name=f"{series.mode}, estimated: {name}",
            points=tuple((float(one.num_devices), one.efficiency[side]) for one in found),
            is_ideal=True,
        )
        for side, name in enumerate(("nothing is hidden", "hidden by the backward pass"))
    ]


def _model(links: Links) -> Picture | None:
    """Measured and modelled times over bytes, for each world size, both axes logarithmic."""
    if not isinstance(links.fitted, RingModel):
        return None
    sizes = sorted({one.num_bytes for one in links.reductions if one.num_bytes > 0})
    lines = [*_reduction_lines(links.reductions, "measured")]
    lines += _reduction_lines(links.sharing, "measured, sharing cores")
    lines += [
        _model_line(links.fitted, world_size, sizes, "model of", is_ideal=True)
        for world_size in links.world_sizes
    ]
    lines += [
        _model_line(links.fitted, num, sizes, "estimate for", is_ideal=False)
        for num in NUM_DEVICES
        if num > links.world_sizes[-1]
    ]
    return draw(
        lines,
        _TITLE,
        f"cost of an all_reduce on {links.device}",
        ("bytes of each rank", "time"),
        format_seconds,
        format_bytes,
        x_axis=logarithmic([x for line in lines for x, _ in line.points], base=2),
        y_axis=logarithmic([y for line in lines for _, y in line.points]),
    )


def _reduction_lines(reductions: Sequence[Reduction], what: str) -> list[Line]:
    return [
        Line(
            name=f"{world_size} ranks, {what}",
            points=tuple(
                sorted(
                    (float(one.num_bytes), one.time_s)
                    for one in reductions
                    if one.world_size == world_size and one.num_bytes > 0
                )
            ),
        )
        for world_size in sorted({one.world_size for one in reductions if one.num_bytes > 0})
    ]


def _model_line(
    model: RingModel, world_size: int, sizes: Sequence[int], what: str, *, is_ideal: bool
) -> Line:
    points = tuple((float(size), model.time_s(world_size, size)) for size in sizes)
    return Line(name=f"{what} {world_size} ranks", points=points, is_ideal=is_ideal)
