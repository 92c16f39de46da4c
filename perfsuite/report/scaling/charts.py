"""Scaling as charts: throughput, and efficiency with what the model says."""

from collections.abc import Iterator, Sequence
from typing import Final

from perfsuite.report.charts.line_chart import PlotLine, draw_lines
from perfsuite.report.charts.sections import Picture, Section, draw_each
from perfsuite.report.scaling.cost_model import environment_of
from perfsuite.report.scaling.series import Scaling, ScalingSeries
from perfsuite.report.scaling.tables import scaling_grids, scaling_notes
from perfsuite.stats.intervals import Interval
from perfsuite.units import format_count, format_ratio

_TITLE: Final = "Scaling"


def draw_scaling(scaling: Scaling) -> tuple[Section, ...]:
    """Return the section on scaling; nothing where the cells say nothing of it."""
    if not scaling.series and not scaling.links:
        return ()
    by_batch: dict[tuple[object, ...], list[ScalingSeries]] = {}
    for one in scaling.series:
        key = one.kind, one.name, one.batch, environment_of(one.cells[0].rows[0])
        by_batch.setdefault(key, []).append(one)
    groups = list(by_batch.values())
    throughputs, num_left_out = draw_each(_throughput, groups)
    efficiencies, _ = draw_each(_efficiency, groups)
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


def _efficiency(group: Sequence[ScalingSeries]) -> Picture:
    lines: list[PlotLine] = []
    for series in group:
        points, error_bars = [], []
        for cell in series.cells:
            found = cell.efficiency or Interval(centre=1.0, low=1.0, high=1.0)
            points.append((float(cell.num_devices), found.centre))
            error_bars.append(found.bounds or (found.centre, found.centre))
        lines.append(PlotLine(name=series.mode, points=tuple(points), error_bars=tuple(error_bars)))
    widest = max(x for line in lines for x, _ in line.points)
    lines += [line for series in group for line in _model_lines(series)]
    is_wider = max(x for line in lines for x, _ in line.points) > widest
    axes = "devices", "efficiency"
    return draw_lines(lines, _TITLE, _title(group), axes, format_ratio, is_logarithmic=is_wider)


def _model_lines(series: ScalingSeries) -> Iterator[PlotLine]:
    """What the model says of the cells, and beyond them."""
    expected = [cell.expected for cell in series.cells if cell.expected is not None]
    widest = series.cells[-1].num_devices
    found = [*expected, *(one for one in series.estimates if one.num_devices > widest)]
    for side, name in enumerate(("without overlap", "with full overlap")) if found else ():
        yield PlotLine(
            name=f"{series.mode}, estimated {name}",
            points=tuple((float(one.num_devices), one.efficiency[side]) for one in found),
            is_reference=True,
        )
