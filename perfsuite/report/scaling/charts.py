"""Scaling as charts: throughput, and efficiency with what the model says."""

from collections.abc import Iterator, Sequence
from typing import Final

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, logarithmic
from perfsuite.report.charts.sections import Picture, Section, draw_each
from perfsuite.report.scaling.cost_model import NUM_DEVICES, Scaling, environment_of
from perfsuite.report.scaling.series import ScalingSeries
from perfsuite.report.scaling.tables import scaling_grids, scaling_notes
from perfsuite.units import format_count, format_ratio

_TITLE: Final = "Scaling"


def draw_scaling(scaling: Scaling) -> tuple[Section, ...]:
    """Return the section on scaling; nothing where the cells say nothing of it."""
    if not scaling.series and not scaling.links:
        return ()
    by_batch: dict[tuple[object, ...], list[ScalingSeries]] = {}
    for one in scaling.series:
        key = one.kind, one.name, one.batch, environment_of(one.row)
        by_batch.setdefault(key, []).append(one)
    groups = list(by_batch.values())
    throughputs, num_left_out = draw_each(_throughput, groups)
    efficiencies, _ = draw_each(lambda group: _efficiency(scaling, group), groups)
    return (
        Section(
            title=_TITLE,
            charts=(*throughputs, *efficiencies),
            num_left_out=num_left_out,
            notes=tuple(scaling_notes(scaling)),
            grids=scaling_grids(scaling),
        ),
    )


def _title(group: Sequence[ScalingSeries]) -> str:
    return f"{group[0].kind}: {group[0].name}, {group[0].batch_name}"


def _throughput(group: Sequence[ScalingSeries]) -> Picture:
    lines = [
        PlotLine(
            name=series.mode,
            points=tuple((float(cell.num_devices), cell.samples_per_s) for cell in series.cells),
        )
        for series in group
    ]
    first_x, first_y = lines[0].points[0]
    widest = max(x for line in lines for x, _ in line.points)
    ideal = PlotLine(
        name=f"ideal, in proportion to {first_x:.0f}",
        points=((first_x, first_y), (widest, first_y * widest / first_x)),
        is_reference=True,
    )
    axes = "devices", "samples/s"
    return draw_lines([*lines, ideal], _TITLE, _title(group), axes, format_count)


def _efficiency(scaling: Scaling, group: Sequence[ScalingSeries]) -> Picture:
    measured: list[PlotLine] = []
    modelled: list[PlotLine] = []
    for series in group:
        points, error_bars = [(float(series.base.num_devices), 1.0)], [(1.0, 1.0)]
        for point in series.points:
            assert point.efficiency is not None
            centre = point.efficiency.centre
            points.append((float(point.cell.num_devices), centre))
            error_bars.append(point.bounds or (centre, centre))
        measured.append(
            PlotLine(name=series.mode, points=tuple(points), error_bars=tuple(error_bars))
        )
        modelled += _model_lines(scaling, series)
    xs = [x for line in (*measured, *modelled) for x, _ in line.points]
    is_wide = max(xs) > max(x for line in measured for x, _ in line.points)
    return draw_lines(
        [*measured, *modelled],
        _TITLE,
        _title(group),
        ("devices", "efficiency"),
        format_ratio,
        x_axis=logarithmic(xs, base=2) if is_wide else None,
    )


def _model_lines(scaling: Scaling, series: ScalingSeries) -> Iterator[PlotLine]:
    measured = sorted({point.cell.num_devices for point in series.points})
    nums = [*measured, *(num for num in NUM_DEVICES if num > measured[-1])]
    found = [one for num in nums if (one := scaling.predict(series, num)) is not None]
    for side, name in enumerate(("without overlap", "with full overlap")) if found else ():
        yield PlotLine(
            name=f"{series.mode}, estimated {name}",
            points=tuple((float(one.num_devices), one.efficiency[side]) for one in found),
            is_reference=True,
        )
