"""A worker sweep as a table and as a picture."""

from collections.abc import Mapping

from perfsuite.report.charts.line_chart import PlotLine, draw_lines, line_of_intervals
from perfsuite.report.charts.sections import Picture
from perfsuite.report.terminal.tables import text_table
from perfsuite.stats.intervals import Interval
from perfsuite.units import format_seconds

Intervals = Mapping[int, Interval]

_COLUMNS = (
    *(("workers", True), ("training step", True), ("between", True)),
    *(("loading a batch", True), ("between", True), ("", False)),
)


def sweep_table(training: Intervals, loading: Intervals, best: int, hurts_from: int | None) -> str:
    """Return the table of all numbers of workers as text."""
    rows = []
    for count in sorted(training):
        mark = "optimum" if count == best else ""
        if hurts_from is not None and count >= hurts_from:
            mark = "hurts"
        rows.append((str(count), *_texts(training[count]), *_texts(loading[count]), mark))
    return text_table(_COLUMNS, rows)


def draw_sweep(
    title: str, training: Intervals, loading: Intervals, optimum: int, hurts_from: int | None
) -> Picture:
    """Return both times with their intervals over the workers, the optimum and what hurts."""
    named = {"training step, loading included": training, "loading alone": loading}
    lines = [line_of_intervals(name, sorted(found.items())) for name, found in named.items()]
    tallest_s = max(high for line in lines for _, high in line.error_bars)
    best = ((float(optimum), 0.0), (float(optimum), tallest_s))
    lines.append(PlotLine(name=f"optimum: {optimum}", points=best, is_reference=True))
    if hurts_from is not None:
        worse = [(float(count), 0.0) for count in sorted(training) if count >= hurts_from]
        lines.append(PlotLine(name=f"more hurt, from {hurts_from}", points=worse))
    return draw_lines(lines, "Sweep", title, ("num_workers", "time per iteration"), format_seconds)


def _texts(interval: Interval) -> tuple[str, str]:
    return format_seconds(interval.centre), " and ".join(map(format_seconds, interval.bounds or ()))
