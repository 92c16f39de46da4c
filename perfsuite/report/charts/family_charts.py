"""Charts of cells that differ in one field: worker sweeps, checkpointing, losses."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, line_of_values, write_number
from perfsuite.report.charts.sections import Picture, Section, draw_each
from perfsuite.report.families import Family, families
from perfsuite.report.rows import Row
from perfsuite.stats import intervals
from perfsuite.units import format_bytes, format_seconds


def draw_families(rows: Sequence[Row]) -> Iterator[Section]:
    """Yield all charts that families of cells have points for, those of the first rows first."""
    kinds: tuple[tuple[str, Callable[[str, Family], Picture | None], Sequence[Family]], ...] = (
        ("Loader workers", _workers, families(rows, "num_workers")),
        ("Memory against recomputation", _checkpointing, families(rows, "checkpointing")),
        ("Losses by precision", _losses, families(rows, "precision")),
    )
    for title, draw_one, found in kinds:
        charts, num_left_out = draw_each(partial(draw_one, title), found)
        if charts:
            yield Section(title=title, charts=charts, num_left_out=num_left_out)


def _workers(kind: str, family: Family) -> Picture:
    points, error_bars = [], []
    for member in family.members:
        step_s, spread_s = member.step_time_s, intervals.robust_sd(member.row.rounds_s)
        points.append((float(member.value), step_s))
        error_bars.append((max(step_s - spread_s, 0.0), step_s + spread_s))
    line = PlotLine(name="step, ± its spread over rounds", points=points, error_bars=error_bars)
    return draw_lines([line], kind, family.name, ("num_workers", "step"), format_seconds)


def _checkpointing(kind: str, family: Family) -> Picture | None:
    lines = [
        PlotLine(name=str(member.value), points=((member.step_time_s, float(memory.peak_bytes)),))
        for member in family.members
        if (memory := member.record.memory) is not None
    ]
    if len(lines) < 2:
        return None
    axes = "step", "peak memory"
    return draw_lines(lines, kind, family.name, axes, format_bytes, format_seconds)


def _losses(kind: str, family: Family) -> Picture | None:
    lines = []
    for member in family.members:
        line = line_of_values(str(member.value), member.record.losses)
        if num_left_out := len(member.record.losses) - len(line.points):
            name = f"{line.name}, without {num_left_out} that are not finite or below 0"
            line = line._replace(name=name)
        if len(line.points) > 1:
            lines.append(line)
    if len(lines) < 2:
        return None
    return draw_lines(lines, kind, family.name, ("step", "loss"), write_number)
