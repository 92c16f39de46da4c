"""Scaling as tables, JSON and sentences; measurements and estimates are never in one table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from perfsuite.report.charts.sections import Grid
from perfsuite.report.rows import NOT_AVAILABLE, Column
from perfsuite.report.scaling import cost_model
from perfsuite.report.scaling.cost_model import NUM_DEVICES, Estimate, Links, Scaling
from perfsuite.report.scaling.series import ScaledCell, ScalingPoint, ScalingSeries
from perfsuite.units import format_bytes, format_count, format_ratio, format_seconds

# More rows are not worth reading through; all of them are in the file beside the page.
_MOST_ROWS: Final = 200


class _Measured(NamedTuple):
    """One cell of a series, with what the model says of it."""

    series: ScalingSeries
    point: ScalingPoint
    cell: ScaledCell
    expected: Estimate | None

    @property
    def basis(self) -> str | None:
        """What the interval covers: of the cell, and of the base."""
        base = self.series.base
        if self.cell is base:
            return None
        basis = "" if self.cell.basis == base.basis else f" {self.cell.basis}"
        return f"{len(self.cell.samples_s)}{basis} and {len(base.samples_s)} {base.basis}"


def _size(cell: ScaledCell) -> tuple[int, int | None]:
    """Processes and cores."""
    return cell.num_processes, cell.rows[0].num_cores


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
        "efficiency_ratio",
        "efficiency",
        lambda one: one.point.efficiency and one.point.efficiency.centre,
        format_ratio,
        missing="base",
    ),
    Column(
        "interval_ratio",
        "between",
        lambda one: one.point.bounds,
        lambda ends: " and ".join(map(format_ratio, ends)),
    ),
    Column("interval_over", "interval over", lambda one: one.basis, is_number=False),
    Column("exposed_ratio", "exposed", lambda one: one.point.exposed_ratio, format_ratio),
    Column("num_processes", "", lambda one: one.cell.num_processes),
    Column("num_cores", "", lambda one: one.series.row.num_cores),
    Column("shares_cores", "", lambda one: one.cell.shares_cores),
    Column(
        "by_the_model",
        "by the model",
        lambda one: None if one.expected is None else asdict(one.expected),
        lambda expected: " to ".join(map(format_ratio, expected["efficiency"])),
    ),
    Column(
        "",
        "cores",
        lambda one: " on ".join(map(str, _size(one.cell))) if one.cell.shares_cores else "",
        is_number=False,
    ),
)
_PREDICTED: Final = (
    *(("device", False), ("left out", False), ("measurements", True)),
    *(("half err by less than", True), ("worst", True), ("no prediction", False)),
)
_ESTIMATED: Final = (
    *(("scaling", False), ("cell", False), ("batch", False), ("estimated over", True)),
    *(("all_reduce", True), ("step", True), ("efficiency", True)),
)


def scaling_grids(scaling: Scaling) -> tuple[Grid, ...]:
    """Return the tables, those with rows."""
    shown = [column for column in _MEASURED if column.title]
    measured = (one for series in scaling.series for one in _measured(scaling, series))
    grids = (
        _grid(
            "Weak and strong scaling, measured",
            [(column.title, column.is_number) for column in shown],
            (tuple(column.text(one) for column in shown) for one in measured),
        ),
        _grid(
            "The model against measurements that it was not fitted to",
            _PREDICTED,
            (row for links in scaling.links.values() for row in _predicted(links)),
        ),
        _grid("Estimates by the model, not measured", _ESTIMATED, _estimated(scaling)),
    )
    return tuple(grid for grid in grids if grid.rows)


def _grid(title: str, columns: Sequence[tuple[str, bool]], rows: Iterable[tuple[str, ...]]) -> Grid:
    found = tuple(rows)
    if len(found) > _MOST_ROWS:
        title += f", without {len(found) - _MOST_ROWS} rows that scaling.json has"
    return Grid(title=title, columns=tuple(columns), rows=found[:_MOST_ROWS])


def scaling_json(scaling: Scaling) -> str:
    """Return series, models, errors and estimates as JSON, in base units; null is unknown."""
    document = {
        "schema": 1,
        "formula": cost_model.FORMULA,
        "source": cost_model.SOURCE,
        "links": [asdict(links) for links in scaling.links.values()],
        "series": [
            {
                "scaling": series.kind,
                "cell": series.name,
                "mode": series.mode,
                "batch": series.batch,
                "measured": [
                    {column.key: column.value(one) for column in _MEASURED if column.key}
                    for one in _measured(scaling, series)
                ],
                "estimates": [asdict(one) for one in scaling.estimates(series)],
            }
            for series in scaling.series
        ],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _measured(scaling: Scaling, series: ScalingSeries) -> Iterator[_Measured]:
    base = ScalingPoint(series.base, series.base)
    for point in (base, *series.points):
        num = point.cell.num_devices
        expected = None if point is base else scaling.predict(series, num)
        yield _Measured(series, point, point.cell, expected)


def _predicted(links: Links) -> Iterator[tuple[str, ...]]:
    for one in links.held_out:
        left_out = f"{one.value} ranks" if one.axis == "world_size" else format_bytes(one.value)
        errors = cost_model.describe_errors(one.ratios) if one.ratios else (NOT_AVAILABLE,) * 3
        yield links.device, left_out, *errors, one.reason or ""
    if links.model is not None:
        sharing = links.all_reduces_sharing_cores
        for world_size in sorted({one.world_size for one in sharing}):
            measured = [one for one in sharing if one.world_size == world_size]
            ratios = cost_model.prediction_ratios(links.model, measured)
            left_out = f"{world_size} ranks on {links.num_cores} cores, in no fit"
            yield links.device, left_out, *cost_model.describe_errors(ratios), ""


def _estimated(scaling: Scaling) -> Iterator[tuple[str, ...]]:
    """Estimates of steps, and then of the largest bare all_reduce that was measured."""
    for series in scaling.series:
        for one in scaling.estimates(series):
            yield (
                *(series.kind, series.name, series.batch_name, f"{one.num_devices} devices"),
                format_seconds(one.all_reduce_s),
                " to ".join(map(format_seconds, one.step_time_s)),
                " to ".join(map(format_ratio, one.efficiency)),
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
        yield from _series_notes(scaling.series)
    yield from map(_link_note, scaling.links.values())
    if any(scaling.estimates(series) for series in scaling.series):
        yield (
            "By the model a step takes as long as on one process, and then its all_reduces: all "
            "of them without overlap, and at best what does not fit behind the backward pass. "
            "Over more devices than were measured this is an estimate: it assumes that every link "
            "is like those measured, and that nothing else gets slower."
        )


def _series_notes(series: Sequence[ScalingSeries]) -> Iterator[str]:
    points = [point for one in series for point in one.points]
    yield (
        "Efficiency is the samples per second of a device over those of one process (of the "
        "fewest devices where that was not measured). Weak scaling keeps the batch of a device, "
        "strong scaling that of all devices together."
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
    for size in dict.fromkeys(_size(point.cell) for point in points if point.cell.shares_cores):
        yield (
            f"{size[0]} processes on {size[1]} cores, loader workers included: they take turns, "
            "so that their efficiency measures the sharing of cores and not of links."
        )
    rows = [point.cell.rows[0] for point in points]
    if any(row.num_cores is None and row.record and row.record.device == "cpu" for row in rows):
        yield "How many cores the machine has is not known, so ranks may share them."


def _link_note(links: Links) -> str:
    if links.model is None:
        return f"No cost model for {links.device}: {links.reason}."
    sizes = [one.num_bytes for one in links.all_reduces]
    ranks = " and ".join(map(str, links.world_sizes))
    note = (
        f"Cost model for {links.device}: {cost_model.FORMULA} ({cost_model.SOURCE}; beta includes "
        f"the additions) with {links.model}, from {len(sizes)} launches of all_reduce over {ranks} "
        f"ranks, {format_bytes(min(sizes))} to {format_bytes(max(sizes))}."
    )
    ratios = [ratio for held_out in links.held_out for ratio in held_out.ratios]
    if ratios:
        _, typical, worst = cost_model.describe_errors(ratios)
        note += (
            f" Of measurements left out in turn, half were predicted within {typical}, the worst "
            f"with {worst}."
        )
    if len(links.world_sizes) == 1:
        note += " Measurements of one number of ranks do not show how the cost grows with ranks."
    return note
