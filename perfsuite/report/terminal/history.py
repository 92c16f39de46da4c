"""The course of a cell's times on a terminal: a small chart, or one line of blocks.

Must not know where the times come from, nor how changes are found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from perfsuite.stats.intervals import median
from perfsuite.units import format_seconds

# What a terminal of 80 columns leaves beside the labels.
_WIDTH: Final = 64
_HEIGHT: Final = 8
_LINE_WIDTH: Final = 20
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_POINT, _LEVEL, _CHANGE, _AXIS = "•", "─", "▲", "┴"


def draw_course(
    times_s: Sequence[float],
    levels_s: Sequence[float],
    changes: Collection[int],
    ends: tuple[str, str],
) -> list[str]:
    """Return a chart in lines: the times as points, their level as a line, changes below.

    The scale goes from the least to the largest time, not from 0.

    Args:
        times_s: At least one.
        levels_s: What each time is taken to be without its noise.
        changes: Places of the first times of new levels.
        ends: What stands below the first time, and below the last.
    """
    num_columns = min(_WIDTH, len(times_s))
    low, high = min(*times_s, *levels_s), max(*times_s, *levels_s)
    grid = [[" "] * num_columns for _ in range(_HEIGHT)]
    for letter, values in ((_LEVEL, levels_s), (_POINT, times_s)):
        for place, value in enumerate(values):
            row = _row(value, low, high, _HEIGHT)
            grid[_HEIGHT - 1 - row][_column(place, len(times_s), num_columns)] = letter
    marks = {_column(place, len(times_s), num_columns) for place in changes}
    axis = "".join(_CHANGE if column in marks else _AXIS for column in range(num_columns))
    labels = [format_seconds(high), *[""] * (_HEIGHT - 2), format_seconds(low), ""]
    width = max(map(len, labels))
    lines = [
        f"{label:>{width}} {''.join(row)}".rstrip()
        for label, row in zip(labels, [*grid, list(axis)], strict=True)
    ]
    first, last = ends
    gap = max(1, num_columns - len(first) - len(last))
    return [*lines, f"{'':{width}} {first}{'' if last == first else ' ' * gap + last}"]


def draw_line(times_s: Sequence[float]) -> str:
    """Return times as one line of blocks, the least the lowest.

    >>> draw_line([1.0, 1.0, 2.0, 2.0, 1.5])
    '▁▁██▅'
    """
    num_columns = min(_LINE_WIDTH, len(times_s))
    columns: list[list[float]] = [[] for _ in range(num_columns)]
    for place, time_s in enumerate(times_s):
        columns[_column(place, len(times_s), num_columns)].append(time_s)
    heights = [median(column) for column in columns]
    low, high = min(heights), max(heights)
    return "".join(_BLOCKS[_row(height, low, high, len(_BLOCKS))] for height in heights)


def _column(place: int, num_values: int, num_columns: int) -> int:
    return place * num_columns // num_values


def _row(value: float, low: float, high: float, num_rows: int) -> int:
    """From 0, the lowest; where all values are equal they lie on it."""
    return 0 if high == low else round((value - low) / (high - low) * (num_rows - 1))
