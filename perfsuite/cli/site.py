"""The site of `history --html`: a page for each cell over its commits, and an index of them."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from perfsuite.gate.history import CellHistory, StoredHistory, names_of
from perfsuite.report.charts.line_chart import PlotLine, draw_lines, line_of_values, ticks
from perfsuite.report.charts.sections import Grid, Picture, Section
from perfsuite.report.formats.folder import PAGE, file_name
from perfsuite.report.formats.html import html_page
from perfsuite.report.model import report_on_rows, report_on_runs
from perfsuite.report.rows import COLUMNS, Row, filled
from perfsuite.report.runs import read_runs
from perfsuite.report.summary import Summary
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import printable
from perfsuite.units import format_bytes, format_seconds

_TITLE = "Over commits"
# The axis of times shows no less: noise is no mountain.
_LEAST_SPAN_RATIO = 0.05


def write_site(
    folder: Path, stored: StoredHistory, told: Sequence[tuple[CellHistory, list[str]]]
) -> None:
    """Write the pages of cells with what is told of them; raises a SettingError or a WriteError."""
    runs = read_runs([run.path for _, run in stored.runs])
    rows = {str(run.path): {row.name: row for row in run.rows} for run in runs}
    links: dict[str, str] = {}
    for one, sentences in told:
        names = [printable(name) for name in names_of(one.timeline.cell, stored.accepted)]
        found = (rows[point.path] for point in one.timeline.points)
        ran = [next(run[name] for name in names if name in run) for run in found]
        # Verdicts are in the table of runs: without one here the charts come first.
        newest = dataclasses.replace(ran[-1], name=names[0], verdict=None)
        page = report_on_rows([newest], sources=[], remarks=sentences[1:])
        summary = Summary(word=None, text=printable(sentences[0]))
        page = page._replace(summary=summary, sections=(_over_commits(one, ran),))
        links[names[0]] = f"{file_name(names[0])}.html"
        write_atomically(folder / links[names[0]], html_page(page, home=PAGE).encode())
    write_atomically(folder / PAGE, html_page(report_on_runs(runs), links=links).encode())


def _over_commits(one: CellHistory, rows: Sequence[Row]) -> Section:
    columns, runs = filled(COLUMNS[1:], rows), zip(one.timeline.points, rows, strict=True)
    lines = [(str(point), *(column.text(row) for column in columns)) for point, row in runs]
    titles = ("commit", False), *((column.title, column.is_number) for column in columns)
    grid = Grid(title="Runs, the newest first", columns=titles, rows=tuple(lines[::-1]))
    return Section(title=_TITLE, charts=tuple(_charts(one, rows)), num_left_out=0, grids=(grid,))


def _charts(one: CellHistory, rows: Sequence[Row]) -> Iterator[Picture]:
    points, times_s, cell = one.timeline.points, one.timeline.times_s(), rows[-1].name
    across = ticks(len(points), 1.0)

    def commit(x: float) -> str:
        return str(points[int(x) - 1]).partition(" ")[0] if 1 <= x <= len(points) else ""

    spreads_s = [(row.spread_ratio or 0.0) * (row.step_time_s or 0.0) for row in rows]
    bars = tuple((max(at - by, 0.0), at + by) for at, by in zip(times_s, spreads_s, strict=True))
    steps = line_of_values("step, ± its spread over rounds", times_s)
    lines = [steps._replace(error_bars=bars)]
    for start, end in pairwise(one.trend.bounds if one.trend else ()):
        level_s = statistics.median(times_s[start:end])
        ends = (start + 1.0, level_s), (float(end), level_s)
        lines.append(PlotLine(name=format_seconds(level_s), points=ends, is_reference=True))
    least, most = min(low for low, _ in bars), max(high for _, high in bars)
    gap = ticks(max(most - least, _LEAST_SPAN_RATIO * most))[1]
    up = tuple(gap * n for n in range(int(least / gap), int(most / gap) + 2))
    axes = "commit", "step"
    yield draw_lines(lines, _TITLE, cell, axes, format_seconds, commit, x_ticks=across, y_ticks=up)
    kept = (row.record.memory if row.record else None for row in rows)
    peaks = line_of_values("peak memory", (one.peak_bytes if one else None for one in kept))
    if peaks.points:
        axes = "commit", "memory"
        yield draw_lines([peaks], _TITLE, cell, axes, format_bytes, commit, x_ticks=across)
