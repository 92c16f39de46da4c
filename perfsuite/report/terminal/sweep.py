"""A worker sweep as people read it: a table and a picture. Must not know how it was measured."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from perfsuite.report.terminal.tables import render
from perfsuite.stats.intervals import Interval
from perfsuite.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Intervals = Mapping[int, Interval]

# Of Okabe and Ito, "Color Universal Design" (2008): told apart by colour-blind readers too.
_BLUE, _ORANGE, _GREEN, _RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_MS = 1000.0


def sweep_table(
    training: Intervals, loading: Intervals, optimum: int, hurts_from: int | None
) -> str:
    """Return the table of all numbers of workers as text."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("workers", "training step", "between", "loading a batch", "between"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    for count in sorted(training):
        mark = "optimum" if count == optimum else ""
        if hurts_from is not None and count >= hurts_from:
            mark = "hurts"
        table.add_row(str(count), *_cells(training[count]), *_cells(loading[count]), mark)
    return render(table)


def draw_sweep(
    title: str, training: Intervals, loading: Intervals, optimum: int, hurts_from: int | None
) -> bytes:
    """Return the sweep as an SVG picture: both times with their intervals over the workers."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    _draw_curve(axes, training, "training step, loading included", _BLUE, "o")
    _draw_curve(axes, loading, "loading alone", _ORANGE, "s")
    axes.axvline(optimum, color=_GREEN, linestyle="--", label=f"optimum: {optimum}")
    if hurts_from is not None:
        last = max(training)
        label = f"more hurt, from {hurts_from}"
        axes.axvspan(hurts_from - 0.5, last + 0.5, color=_RED, alpha=0.12, label=label)
    axes.set(title=title, xlabel="num_workers", ylabel="ms per iteration")
    axes.set_xticks(sorted(training))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    # Text stays text, and equal sweeps give equal bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "perfsuite"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()


def _draw_curve(axes: Axes, intervals: Intervals, label: str, colour: str, marker: str) -> None:
    counts = sorted(intervals)
    centres = [intervals[count].centre * _MS for count in counts]
    reach = [
        [_reach(intervals[count].centre - intervals[count].low) for count in counts],
        [_reach(intervals[count].high - intervals[count].centre) for count in counts],
    ]
    axes.errorbar(counts, centres, yerr=reach, label=label, color=colour, marker=marker, capsize=3)


def _reach(seconds: float) -> float:
    """Length of an error bar in ms; none where a single repetition knows no interval."""
    return seconds * _MS if math.isfinite(seconds) else 0.0


def _cells(interval: Interval) -> tuple[str, str]:
    between = f"{format_seconds(interval.low)} and {format_seconds(interval.high)}"
    return format_seconds(interval.centre), between if math.isfinite(interval.high) else ""
