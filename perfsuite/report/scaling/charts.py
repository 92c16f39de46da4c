"""Scaling as charts: throughput, efficiency with what the model says, and the model itself."""

from collections.abc import Iterator, Sequence
from typing import Final

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, logarithmic
from perfsuite.report.charts.sections import Picture, Section, draw_each
from perfsuite.report.scaling.cost_model import NUM_DEVICES, Links, Scaling, environment_of
from perfsuite.report.scaling.series import ScalingSeries
from perfsuite.report.scaling.tables import scaling_grids, scaling_notes
from perfsuite.units import format_bytes, format_count, format_ratio, format_seconds

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
    models, _ = draw_each(_model, list(scaling.links.values()))
    return (
        Section(
            title=_TITLE,
            charts=(*models, *throughputs, *efficiencies),
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


def _model(links: Links) -> Picture | None:
    """Measured and modelled times over bytes, for each world size, both axes logarithmic."""
    if links.model is None:
        return None
    lines = []
    for measured, what in (
        (links.all_reduces, "measured"),
        (links.all_reduces_sharing_cores, "measured, sharing cores"),
    ):
        times: dict[int, list[tuple[float, float]]] = {}
        for one in measured:
            if one.num_bytes > 0:
                times.setdefault(one.world_size, []).append((float(one.num_bytes), one.time_s))
        lines += [
            PlotLine(name=f"{num} ranks, {what}", points=tuple(sorted(points)))
            for num, points in sorted(times.items())
        ]
    sizes = sorted({one.num_bytes for one in links.all_reduces if one.num_bytes > 0})
    further = [num for num in NUM_DEVICES if num > links.world_sizes[-1]]
    for num in (*links.world_sizes, *further):
        is_fitted = num in links.world_sizes
        lines.append(
            PlotLine(
                name=f"{'model of' if is_fitted else 'estimate for'} {num} ranks",
                points=tuple((float(size), links.model.time_s(num, size)) for size in sizes),
                is_reference=is_fitted,
            )
        )
    return draw_lines(
        lines,
        _TITLE,
        f"cost of an all_reduce on {links.device}",
        ("bytes of each rank", "time"),
        format_seconds,
        format_bytes,
        x_axis=logarithmic([x for line in lines for x, _ in line.points], base=2),
        y_axis=logarithmic([y for line in lines for _, y in line.points]),
    )
