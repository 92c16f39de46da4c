"""Scaling as charts: throughput and efficiency over devices."""

from collections.abc import Sequence
from typing import Final

from perfsuite.report.charts.line_chart import PlotLine, draw_lines
from perfsuite.report.charts.sections import Picture, Section, draw_each
from perfsuite.report.scaling.series import ScalingSeries
from perfsuite.report.scaling.tables import scaling_grid, scaling_notes
from perfsuite.units import format_count, format_ratio

_TITLE: Final = "Scaling"


def draw_scaling(scaling: Sequence[ScalingSeries]) -> tuple[Section, ...]:
    """Return the section on scaling; nothing where there is no series."""
    if not scaling:
        return ()
    by_batch: dict[tuple[object, ...], list[ScalingSeries]] = {}
    for one in scaling:
        record = one.points[0].cell.rows[0].record
        assert record is not None
        key = one.kind, one.name, one.batch, record.device, record.fingerprint
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
            grids=(scaling_grid(scaling),),
        ),
    )


def _title(group: Sequence[ScalingSeries]) -> str:
    return f"{group[0].kind}: {group[0].name}, {group[0].batch_name}"


def _throughput(group: Sequence[ScalingSeries]) -> Picture:
    lines = [
        PlotLine(
            name=series.mode,
            points=tuple(
                (float(point.cell.num_devices), point.cell.samples_per_s) for point in series.points
            ),
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
    lines = []
    for series in group:
        points, error_bars = [], []
        for point in series.points:
            centre = 1.0 if point.efficiency is None else point.efficiency.centre
            points.append((float(point.cell.num_devices), centre))
            error_bars.append(point.bounds or (centre, centre))
        lines.append(PlotLine(name=series.mode, points=tuple(points), error_bars=tuple(error_bars)))
    return draw_lines(lines, _TITLE, _title(group), ("devices", "efficiency"), format_ratio)
