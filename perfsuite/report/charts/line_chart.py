"""Line charts, and those of families of cells: worker sweeps, checkpointing, losses.

Must not know any format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perfsuite.report.charts.axes import Axis, binary_unit, linear
from perfsuite.report.charts.pictures import Picture, Text
from perfsuite.units import format_bytes

# As wide as a third of the page shows it, so that its letters are as large as the page's.
_WIDTH: Final = 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 384.0, 52.0, 212.0
# Characters that have room around the last tick of the x axis.
_MOST_AT_BORDER: Final = 4
_LEGEND_Y: Final = 270.0
_LINE_HEIGHT: Final = 17.0
# As many as the page's styles tell apart by colour and dashes.
_NUM_STYLES: Final = 6


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        points: x and y.
        whiskers: The lower and the upper end of each point's; empty draws none.
        is_ideal: Drawn thin and without marks.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    whiskers: tuple[tuple[float, float], ...] = ()
    is_ideal: bool = False


def draw(
    lines: Sequence[Line],
    kind: str,
    title: str,
    axes: tuple[str, str],
    write_y: Callable[[float], str],
    write_x: Callable[[float], str] | None = None,
    *,
    x_axis: Axis | None = None,
    y_axis: Axis | None = None,
) -> Picture:
    """Return the chart of lines.

    Args:
        lines: At least one point in all.
        kind: What sort of chart it is, for the label.
        title: What it is about.
        axes: Names of x and y.
        write_y: Value on the y axis -> text.
        write_x: Value on the x axis -> text; a plain number unless given.
        x_axis: From 0 unless given.
        y_axis: From 0 unless given.
    """
    # Without a unit it counts something: devices, workers, steps, epochs.
    least_step = 0.0 if write_x else 1.0
    write_x = write_x or write_number
    most = max(x for line in lines for x, _ in line.points)
    across = x_axis or linear(most, least_step=least_step)
    up = y_axis or _y_axis(lines, is_binary=write_y is format_bytes)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (_RIGHT - _LEFT) * across.place(x),
            _BOTTOM - (_BOTTOM - _TOP) * up.place(y),
        )

    left, bottom = across.ticks[0], up.ticks[0]
    grid = "".join(f"M{_LEFT:g} {place(left, y)[1]:.1f}H{_RIGHT:g}" for y in up.ticks)
    paths = [("grid", grid)]
    texts = [
        Text(x=4, y=18, anchor="start", content=title),
        Text(x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 36, anchor="middle", content=axes[0]),
        Text(x=4, y=_TOP - 14, anchor="start", content=axes[1]),
    ]
    texts += [_x_tick(place(x, bottom)[0], write_x(x)) for x in across.ticks]
    texts += [_tick(_LEFT - 6, place(left, y)[1] + 4, "end", write_y(y)) for y in up.ticks]
    for number, line in enumerate(lines):
        style = "ideal" if line.is_ideal else f"s{number % _NUM_STYLES}"
        paths += _line_paths(line, style, place)
        y = _LEGEND_Y + number * _LINE_HEIGHT
        paths.append((style, f"M{_LEFT:g} {y - 4:g}h28"))
        texts.append(Text(x=_LEFT + 36, y=y, anchor="start", content=line.name))
    return Picture(
        label=f"{kind}, {title}. {_values(lines, axes[0], write_x, write_y)}",
        width=_WIDTH,
        height=_LEGEND_Y + (len(lines) - 1) * _LINE_HEIGHT + 8,
        paths=tuple(paths),
        texts=tuple(texts),
    )


def _y_axis(lines: Sequence[Line], *, is_binary: bool) -> Axis:
    ends = (high for line in lines for _, high in line.whiskers)
    largest = max([*(y for line in lines for _, y in line.points), *ends])
    return linear(largest, binary_unit(largest) if is_binary else 1.0)


def _values(
    lines: Sequence[Line],
    x_name: str,
    write_x: Callable[[float], str],
    write_y: Callable[[float], str],
) -> str:
    """All points in words."""
    return "; ".join(
        f"{line.name}: "
        + ", ".join(f"{write_y(y)} at {x_name} {write_x(x)}" for x, y in line.points)
        for line in lines
    )


def _line_paths(
    line: Line, style: str, place: Callable[[float, float], tuple[float, float]]
) -> Iterator[tuple[str, str]]:
    placed = [place(x, y) for x, y in line.points]
    yield style, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    if not line.is_ideal:
        yield f"{style} dot", "".join(f"M{x:.1f} {y:.1f}h0" for x, y in placed)
    for (x, _), (low, high) in zip(line.points, line.whiskers, strict=False):
        (x0, y0), (_, y1) = place(x, low), place(x, high)
        yield style, f"M{x0:.1f} {y0:.1f}V{y1:.1f}"


def _x_tick(x: float, content: str) -> Text:
    y = _BOTTOM + 17
    if x >= _RIGHT and len(content) > _MOST_AT_BORDER:
        return _tick(_WIDTH - 2, y, "end", content)
    return _tick(x, y, "middle", content)


def _tick(x: float, y: float, anchor: str, content: str) -> Text:
    return Text(x=round(x, 1), y=round(y, 1), anchor=anchor, content=content)  # type: ignore[arg-type]


def write_number(value: float) -> str:
    """Return a plain number."""
    return f"{value:g}"
