"""Scaling as charts, tables, JSON and sentences; no table has both measurements and estimates."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, line_of_intervals
from perfsuite.report.charts.sections import Grid, Picture, Section, draw_each
from perfsuite.report.rows import NOT_AVAILABLE, Column, at
from perfsuite.report.scaling import cost_model
from perfsuite.report.scaling.series import NUM_DEVICES, ScaledCell, Scaling, ScalingSeries
from perfsuite.stats.intervals import Interval
from perfsuite.units import format_bytes, format_change, format_count, format_ratio, format_seconds

# More rows are not worth reading through; all of them are in the file beside the page.
_MOST_ROWS = 200


def _interval_over(cell: ScaledCell) -> str | None:
    if cell.base is None:
        return None
    basis = "" if cell.basis == cell.base.basis else f" {cell.basis}"
    return f"{len(cell.samples_s)}{basis} and {len(cell.base.samples_s)} {cell.base.basis}"


def _cores(cell: ScaledCell) -> tuple[int, int | None] | None:
    """Processes, and the fewer cores that they share; None where they share none."""
    return (cell.num_processes, cell.rows[0].num_cores) if cell.shares_cores else None


def _ratios(word: str, ends: tuple[float, float]) -> str:
    return f" {word} ".join(map(format_ratio, ends))


# A column without a key is in the table alone, one without a title in the JSON alone.
_COLUMNS: tuple[Column[ScaledCell], ...] = (
    Column("parallel", "over", at("recipe.parallel"), is_number=False),
    Column("num_devices", "", at("num_devices")),
    Column("step_time_s", "step", at("step_time_s"), format_seconds),
    Column("samples_per_s", "samples/s", at("samples_per_s"), format_count),
    Column("efficiency_ratio", "efficiency", at("efficiency.centre"), format_ratio, missing="base"),
    Column("interval_ratio", "between", at("efficiency.bounds"), partial(_ratios, "and")),
    Column("interval_over", "interval over", _interval_over, is_number=False),
    Column("exposed_ratio", "exposed", at("exposed_ratio"), format_ratio),
    Column("num_processes", "", at("num_processes")),
    Column("num_cores", "", lambda cell: cell.rows[0].num_cores),
    Column("shares_cores", "", at("shares_cores")),
    Column(
        *("by_the_model", "by the model", at("expected")),
        lambda estimate: _ratios("to", estimate.efficiency),
    ),
    Column("", "cores", _cores, "{0[0]} on {0[1]}".format, is_number=False, missing=""),
)
_OF_SERIES = (("scaling", False), ("cell", False), ("batch", False))
_PREDICTED = (
    *(("device", False), ("left out", False), ("measurements", True)),
    *(("half err by less than", True), ("worst", True), ("no prediction", False)),
)
_ESTIMATED = (
    *_OF_SERIES,
    *(("estimated over", True), ("all_reduce", True), ("step", True), ("efficiency", True)),
)


def draw_scaling(scaling: Scaling) -> tuple[Section, ...]:
    """Return the section on scaling; nothing where the cells say nothing of it."""
    if not scaling.series and not scaling.links:
        return ()
    by_batch: dict[tuple[object, ...], list[ScalingSeries]] = {}
    for one in scaling.series:
        key = one.kind, one.name, one.batch, cost_model.environment_of(one.cells[0].rows[0])
        by_batch.setdefault(key, []).append(one)
    groups = list(by_batch.values())
    throughputs, num_left_out = draw_each(_draw_throughput, groups)
    efficiencies, _ = draw_each(_draw_efficiency, groups)
    charts, notes = (*throughputs, *efficiencies), tuple(scaling_notes(scaling))
    return (Section("Scaling", charts, num_left_out, notes, scaling_grids(scaling)),)


def _title(group: Sequence[ScalingSeries]) -> str:
    return f"{group[0].kind}: {group[0].name}, {group[0].batch_name}"


def _draw_throughput(group: Sequence[ScalingSeries]) -> Picture:
    lines = []
    for series in group:
        points = [(float(cell.num_devices), cell.samples_per_s) for cell in series.cells]
        lines.append(PlotLine(name=series.mode, points=points))
    first_x, first_y = lines[0].points[0]
    widest = max(x for line in lines for x, _ in line.points)
    name = f"ideal, in proportion to {first_x:.0f}"
    ends = (first_x, first_y), (widest, first_y * widest / first_x)
    ideal = PlotLine(name=name, points=ends, is_reference=True)
    axes = "devices", "samples/s"
    return draw_lines([*lines, ideal], "Scaling", _title(group), axes, format_count)


def _draw_efficiency(group: Sequence[ScalingSeries]) -> Picture:
    of_base, lines = Interval(centre=1.0, low=1.0, high=1.0), []
    for series in group:
        points = [(cell.num_devices, cell.efficiency or of_base) for cell in series.cells]
        lines.append(line_of_intervals(series.mode, points))
    widest = max(x for line in lines for x, _ in line.points)
    lines += [line for series in group for line in _model_lines(series)]
    is_wider = max(x for line in lines for x, _ in line.points) > widest
    axes = "devices", "efficiency"
    return draw_lines(lines, "Scaling", _title(group), axes, format_ratio, is_logarithmic=is_wider)


def _model_lines(series: ScalingSeries) -> Iterator[PlotLine]:
    expected = [cell.expected for cell in series.cells if cell.expected is not None]
    widest = series.cells[-1].num_devices
    found = [*expected, *(one for one in series.estimates if one.num_devices > widest)]
    for side, name in enumerate(("without overlap", "with full overlap")) if found else ():
        points = [(float(one.num_devices), one.efficiency[side]) for one in found]
        yield PlotLine(name=f"{series.mode}, estimated {name}", points=points, is_reference=True)


def scaling_grids(scaling: Scaling) -> tuple[Grid, ...]:
    """Return the tables, those with rows."""
    shown = [column for column in _COLUMNS if column.title]
    cells = ((series, cell) for series in scaling.series for cell in series.cells)
    measured = ((*_names(one), *(column.text(cell) for column in shown)) for one, cell in cells)
    predicted = (row for links in scaling.links.values() for row in _predicted(links))
    titles = (*_OF_SERIES, *((column.title, column.is_number) for column in shown))
    grids = (
        _grid("Weak and strong scaling, measured", titles, measured),
        _grid("The model against measurements that it was not fitted to", _PREDICTED, predicted),
        _grid("Estimates by the model, not measured", _ESTIMATED, _estimated(scaling)),
    )
    return tuple(grid for grid in grids if grid.rows)


def _grid(title: str, heads: tuple[tuple[str, bool], ...], rows: Iterable[tuple[str, ...]]) -> Grid:
    found = tuple(rows)
    if len(found) > _MOST_ROWS:
        title += f", without {len(found) - _MOST_ROWS} rows that scaling.json has"
    return Grid(title=title, columns=heads, rows=found[:_MOST_ROWS])


def scaling_json(scaling: Scaling) -> str:
    """Return series, models, errors and estimates as JSON, in base units; null is unknown."""
    document = {
        "schema": 1,
        "formula": cost_model.FORMULA,
        "source": cost_model.SOURCE,
        "links": [*scaling.links.values()],
        "series": [
            {
                "scaling": series.kind,
                "cell": series.name,
                "mode": series.mode,
                "batch": series.batch,
                "measured": [
                    {column.key: column.value(cell) for column in _COLUMNS if column.key}
                    for cell in series.cells
                ],
                "estimates": series.estimates,
            }
            for series in scaling.series
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False, default=asdict) + "\n"


def _names(series: ScalingSeries) -> tuple[str, str, str]:
    return series.kind, series.name, series.batch_name


def _predicted(links: cost_model.Links) -> Iterator[tuple[str, ...]]:
    for one in links.held_out:
        left_out = f"{one.value} ranks" if one.axis == "world_size" else format_bytes(one.value)
        yield links.device, left_out, *_errors(one.ratios), one.reason or ""
    if links.model is not None:
        sharing = links.all_reduces_sharing_cores
        for world_size in sorted({one.world_size for one in sharing}):
            measured = [one for one in sharing if one.world_size == world_size]
            left_out = f"{world_size} ranks on {links.num_cores} cores, in no fit"
            ratios = cost_model.prediction_ratios(links.model, measured)
            yield links.device, left_out, *_errors(ratios), ""


def _errors(ratios: Sequence[float]) -> tuple[str, str, str]:
    """How many predictions there are, by how much half of them err, and the worst."""
    if not ratios:
        return (NOT_AVAILABLE,) * 3
    sizes = [abs(math.log(ratio)) for ratio in ratios]
    half, worst = math.exp(statistics.median(sizes)), ratios[sizes.index(max(sizes))]
    return str(len(ratios)), format_ratio(half - 1), format_change(worst)


def _estimated(scaling: Scaling) -> Iterator[tuple[str, ...]]:
    """Estimates of steps, and then of the largest bare all_reduce that was measured."""
    for series in scaling.series:
        for one in series.estimates:
            yield (
                *(*_names(series), f"{one.num_devices} devices", format_seconds(one.all_reduce_s)),
                " to ".join(map(format_seconds, one.step_time_s)),
                _ratios("to", one.efficiency),
            )
    for links in scaling.links.values():
        if links.model is not None:
            num_bytes = max(one.num_bytes for one in links.all_reduces)
            named = NOT_AVAILABLE, f"all_reduce on {links.device}", format_bytes(num_bytes)
            for num in NUM_DEVICES:
                if num not in links.world_sizes:
                    seconds = format_seconds(links.model.time_s(num, num_bytes))
                    yield *named, f"{num} devices", seconds, NOT_AVAILABLE, NOT_AVAILABLE


def scaling_notes(scaling: Scaling) -> Iterator[str]:
    """Yield what the numbers do not say by themselves, a sentence or two each."""
    if scaling.series:
        yield from _series_notes([cell for series in scaling.series for cell in series.cells])
    yield from map(_link_note, scaling.links.values())
    if any(series.estimates for series in scaling.series):
        yield (
            "An estimate is the step of one process and its all_reduces: all of them without "
            "overlap, and at best what does not fit behind the backward pass. It assumes that "
            "every link is like those measured, and that nothing else gets slower."
        )


def _series_notes(cells: Sequence[ScaledCell]) -> Iterator[str]:
    yield (
        "Efficiency is the samples per second of a device over those of one process (of the fewest "
        "devices where that was not measured). Weak scaling keeps the batch of a device, strong "
        "scaling that of all devices. Step times here are geometric means, elsewhere medians."
    )
    bases = {cell.basis for cell in cells}
    if "launches" in bases:
        yield (
            "An interval over launches is Welch's at 95 %, on logarithms: it covers how launches "
            "of a cell differ on this machine, and not how machines do."
        )
    if "rounds" in bases:
        yield (
            "An interval over rounds covers how the rounds of one launch differ; two launches can "
            "differ several times as much. Each test of a recipe, in each run, is its own launch."
        )
    if any(cell.exposed_ratio is not None for cell in cells):
        yield (
            "Exposed is the part of the step that waits for communication or a slower rank. Under "
            "ddp backward alone waits, so it is backward(p) - forward(p) backward(1) / forward(1)."
        )
    scaled = [cell for cell in cells if cell.base is not None]
    for size in dict.fromkeys(filter(None, map(_cores, scaled))):
        yield (
            f"{size[0]} processes on {size[1]} cores, loader workers included: they take turns, "
            "so that their efficiency measures the sharing of cores and not of links."
        )
    rows = [cell.rows[0] for cell in scaled]
    if any(row.num_cores is None and row.record and row.record.device == "cpu" for row in rows):
        yield "How many cores the machine has is not known, so ranks may share them."


def _link_note(links: cost_model.Links) -> str:
    if links.model is None:
        return f"No cost model for {links.device}: {links.reason}."
    sizes = [one.num_bytes for one in links.all_reduces]
    ranks = " and ".join(map(str, links.world_sizes))
    note = (
        f"Cost model for {links.device}: {cost_model.FORMULA} ({cost_model.SOURCE}; beta includes "
        f"the additions) with {links.model}, from {len(sizes)} launches of all_reduce over {ranks} "
        f"ranks, {format_bytes(min(sizes))} to {format_bytes(max(sizes))}."
    )
    if ratios := [ratio for held_out in links.held_out for ratio in held_out.ratios]:
        _, typical, worst = _errors(ratios)
        note += f" Of measurements left out in turn, half were predicted within {typical},"
        note += f" the worst with {worst}."
    if len(links.world_sizes) == 1:
        note += " Measurements of one number of ranks do not show how the cost grows with ranks."
    return note
