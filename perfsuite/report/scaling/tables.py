"""Scaling as a table, JSON and sentences."""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from perfsuite.report.charts.sections import Grid
from perfsuite.report.rows import Column
from perfsuite.report.scaling.series import ScaledCell, ScalingPoint, ScalingSeries
from perfsuite.units import format_count, format_ratio, format_seconds

# More rows are not worth reading through; all of them are in the file beside the page.
_MOST_ROWS: Final = 200


def _interval_over(point: ScalingPoint) -> str | None:
    """What the interval covers: of the cell, and of the base."""
    cell, base = point.cell, point.base
    if cell is base:
        return None
    basis = "" if cell.basis == base.basis else f" {cell.basis}"
    return f"{len(cell.samples_s)}{basis} and {len(base.samples_s)} {base.basis}"


def _cores(cell: ScaledCell) -> tuple[int, int | None]:
    """Processes, and the cores that they share."""
    return cell.num_processes, cell.rows[0].num_cores


# A column without a key is in the table alone, one without a title in the JSON alone.
_COLUMNS: Final[tuple[Column[ScalingPoint], ...]] = (
    Column("parallel", "over", lambda point: point.cell.recipe.parallel, is_number=False),
    Column("num_devices", "", lambda point: point.cell.num_devices),
    Column("step_time_s", "step", lambda point: point.cell.step_time_s, format_seconds),
    Column("samples_per_s", "samples/s", lambda point: point.cell.samples_per_s, format_count),
    Column(
        "efficiency_ratio",
        "efficiency",
        lambda point: point.efficiency and point.efficiency.centre,
        format_ratio,
        missing="base",
    ),
    Column(
        "interval_ratio",
        "between",
        lambda point: point.bounds,
        lambda ends: " and ".join(map(format_ratio, ends)),
    ),
    Column("interval_over", "interval over", _interval_over, is_number=False),
    Column("exposed_ratio", "exposed", lambda point: point.exposed_ratio, format_ratio),
    Column("num_processes", "", lambda point: point.cell.num_processes),
    Column("num_cores", "", lambda point: point.cell.rows[0].num_cores),
    Column("shares_cores", "", lambda point: point.cell.shares_cores),
    Column(
        "",
        "cores",
        lambda point: " on ".join(map(str, _cores(point.cell))) if point.cell.shares_cores else "",
        is_number=False,
    ),
)


def scaling_grid(scaling: Sequence[ScalingSeries]) -> Grid:
    """Return the table of all cells of the series."""
    shown = [column for column in _COLUMNS if column.title]
    rows = [
        (series.kind, series.name, series.batch_name, *(column.text(point) for column in shown))
        for series in scaling
        for point in series.points
    ]
    title = "Weak and strong scaling, measured"
    if len(rows) > _MOST_ROWS:
        title += f", without {len(rows) - _MOST_ROWS} rows that scaling.json has"
    columns = [("scaling", False), ("cell", False), ("batch", False)]
    columns += [(column.title, column.is_number) for column in shown]
    return Grid(title=title, columns=tuple(columns), rows=tuple(rows[:_MOST_ROWS]))


def scaling_json(scaling: Sequence[ScalingSeries]) -> str:
    """Return the series as JSON, in base units; null is unknown."""
    document = {
        "schema": 1,
        "series": [
            {
                "scaling": series.kind,
                "cell": series.name,
                "mode": series.mode,
                "batch": series.batch,
                "measured": [
                    {column.key: column.value(point) for column in _COLUMNS if column.key}
                    for point in series.points
                ],
            }
            for series in scaling
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def scaling_notes(scaling: Sequence[ScalingSeries]) -> Iterator[str]:
    """Yield what the numbers do not say by themselves, a sentence or two each."""
    points = [point for series in scaling for point in series.points]
    yield (
        "Efficiency is the samples per second of a device over those of one process (of the "
        "fewest devices where that was not measured). Weak scaling keeps the batch of a device, "
        "strong scaling that of all devices together."
    )
    bases = {point.cell.basis for point in points}
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
    for size in dict.fromkeys(_cores(point.cell) for point in points if point.cell.shares_cores):
        yield (
            f"{size[0]} processes on {size[1]} cores, loader workers included: they take turns, "
            "so that their efficiency measures the sharing of cores and not of links."
        )
    rows = [point.cell.rows[0] for point in points]
    if any(row.num_cores is None and row.record and row.record.device == "cpu" for row in rows):
        yield "How many cores the machine has is not known, so ranks may share them."
