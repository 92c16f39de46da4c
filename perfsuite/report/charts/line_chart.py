"""Line charts: axes with round ticks, lines with error bars, a legend, and all points in words."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfsuite.report.charts.sections import Picture, Text
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
_MOST_POWERS: Final = 6
# A smaller value is drawn as 0: a file may hold times whose quotients no float can.
_SMALLEST_SHOWN: Final = 1e-100

write_number: Final = "{:g}".format


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis between its first and its last tick; on a logarithmic one all values are above 0."""

    ticks: tuple[float, ...]
    is_logarithmic: bool = False

    def position(self, value: float) -> float:
        """The part of the axis that lies below a value, 0 to 1.

        >>> Axis(ticks=(0.0, 2.0, 4.0)).position(1.0)
        0.25
        >>> Axis(ticks=(1.0, 10.0, 100.0), is_logarithmic=True).position(10.0)
        0.5
        """
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_logarithmic:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


@dataclass(frozen=True, kw_only=True)
class PlotLine:
    """One line of a chart, a reference thin and without marks; `error_bars` may be empty."""

    name: str
    points: tuple[tuple[float, float], ...]
    error_bars: tuple[tuple[float, float], ...] = ()
    is_reference: bool = False


def draw_lines(
    lines: Sequence[PlotLine],
    kind: str,
    title: str,
    axes: tuple[str, str],
    write_y: Callable[[float], str],
    write_x: Callable[[float], str] | None = None,
    *,
    x_axis: Axis | None = None,
    y_axis: Axis | None = None,
) -> Picture:
    """Return a chart of at least one point; `kind` is for its label, `axes` names x and y.

    Both axes begin at 0 unless given. Without `write_x`, x counts something.
    """
    widest = max(x for line in lines for x, _ in line.points)
    across = x_axis or Axis(ticks=ticks(widest, 0.0 if write_x else 1.0))
    up = y_axis or _y_axis(lines, is_binary=write_y is format_bytes)
    write_x = write_x or write_number

    def place(x: float, y: float) -> tuple[float, float]:
        right, above = (_RIGHT - _LEFT) * across.position(x), (_BOTTOM - _TOP) * up.position(y)
        return _LEFT + right, _BOTTOM - above

    left, bottom = across.ticks[0], up.ticks[0]
    paths = [("grid", "".join(f"M{_LEFT:g} {place(left, y)[1]:.1f}H{_RIGHT:g}" for y in up.ticks))]
    texts = [
        Text(x=4, y=18, anchor="start", content=title),
        Text(x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 36, anchor="middle", content=axes[0]),
        Text(x=4, y=_TOP - 14, anchor="start", content=axes[1]),
        *(_x_tick(place(x, bottom)[0], write_x(x)) for x in across.ticks),
        *(_tick(_LEFT - 6, place(left, y)[1] + 4, "end", write_y(y)) for y in up.ticks),
    ]
    said = []
    for number, line in enumerate(lines):
        style = "ideal" if line.is_reference else f"s{number % _NUM_STYLES}"
        paths += _line_paths(line, style, place)
        y = _LEGEND_Y + number * _LINE_HEIGHT
        paths.append((style, f"M{_LEFT:g} {y - 4:g}h28"))
        texts.append(Text(x=_LEFT + 36, y=y, anchor="start", content=line.name))
        points = (f"{write_y(y)} at {axes[0]} {write_x(x)}" for x, y in line.points)
        said.append(f"{line.name}: {', '.join(points)}")
    return Picture(
        label=f"{kind}, {title}. {'; '.join(said)}",
        width=_WIDTH,
        height=_LEGEND_Y + (len(lines) - 1) * _LINE_HEIGHT + 8,
        paths=tuple(paths),
        texts=tuple(texts),
    )


def line_of_values(name: str, values: Iterable[float | None]) -> PlotLine:
    """Return the line of values numbered from 1, without those that cannot be drawn from 0 up."""
    return PlotLine(
        name=name,
        points=tuple(
            (float(number), value)
            for number, value in enumerate(values, 1)
            if value is not None and math.isfinite(value) and value >= 0
        ),
    )


def logarithmic(values: Sequence[float], base: int = 10) -> Axis:
    """Return the axis over positive values, its ticks powers of `base`, not more than seven.

    >>> logarithmic([3.0, 700.0]).ticks
    (1.0, 10.0, 100.0, 1000.0)
    """
    first = math.floor(math.log(min(values), base) + 1e-9)
    last = max(math.ceil(math.log(max(values), base) - 1e-9), first + 1)
    step = math.ceil((last - first) / _MOST_POWERS)
    powers = range(first, last + step, step)
    return Axis(ticks=tuple(float(base) ** power for power in powers), is_logarithmic=True)


def ticks(largest: float, least_step: float = 0.0) -> tuple[float, ...]:
    """Return about five round numbers from 0 to at least `largest`.

    Steps of 1, 2 or 5 times a power of ten (Heckbert 1990, "Nice Numbers for Graph Labels").

    >>> ticks(8.0), ticks(0.0), ticks(2.0, least_step=1.0)
    ((0.0, 2.0, 4.0, 6.0, 8.0), (0.0, 1.0), (0.0, 1.0, 2.0))
    """
    if largest < _SMALLEST_SHOWN:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(n * power for n in (1, 2, 5, 10) if n * power * 4 >= largest * (1 - 1e-9))
    step = max(step, least_step)
    count = math.ceil(largest / step - 1e-9)
    return tuple(float(f"{step * number:.12g}") for number in range(count + 1))


def _y_axis(lines: Sequence[PlotLine], *, is_binary: bool) -> Axis:
    ends = (high for line in lines for _, high in line.error_bars)
    largest = max([*(y for line in lines for _, y in line.points), *ends])
    # The largest power of 1024 up to the value, so that ticks in it are round numbers.
    unit = 1024.0 ** int(math.log(largest, 1024)) if is_binary and largest >= 1 else 1.0
    return Axis(ticks=tuple(tick * unit for tick in ticks(largest / unit)))


def _line_paths(
    line: PlotLine, style: str, place: Callable[[float, float], tuple[float, float]]
) -> Iterator[tuple[str, str]]:
    placed = [place(x, y) for x, y in line.points]
    yield style, "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    if not line.is_reference:
        yield f"{style} dot", "".join(f"M{x:.1f} {y:.1f}h0" for x, y in placed)
    for (x, _), (low, high) in zip(line.points, line.error_bars, strict=False):
        (x0, y0), (_, y1) = place(x, low), place(x, high)
        yield style, f"M{x0:.1f} {y0:.1f}V{y1:.1f}"


def _x_tick(x: float, content: str) -> Text:
    if x >= _RIGHT and len(content) > _MOST_AT_BORDER:
        return _tick(_WIDTH - 2, _BOTTOM + 17, "end", content)
    return _tick(x, _BOTTOM + 17, "middle", content)


def _tick(x: float, y: float, anchor: Literal["middle", "end"], content: str) -> Text:
    return Text(x=round(x, 1), y=round(y, 1), anchor=anchor, content=content)
