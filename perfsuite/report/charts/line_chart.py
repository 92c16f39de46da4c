"""Line charts: axes with round ticks, lines with error bars, a legend, and all points in words."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from perfsuite.report.charts.sections import Picture, Text
from perfsuite.stats.intervals import Interval
from perfsuite.units import format_bytes

# As wide as a third of the page shows it, so that its letters are as large as the page's.
_WIDTH = 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 384.0, 52.0, 212.0
# Characters that have room around the last tick of the x axis.
_MOST_AT_BORDER = 4
_LEGEND_Y = 270.0
_LINE_HEIGHT = 17.0
# As many as the page's styles tell apart by colour and dashes.
_NUM_STYLES = 6
_MOST_POWERS = 6
_HIGHEST_END = 2.0  # of an interval, over the highest point: what lies above is cut off
# A smaller value is drawn as 0: a file may hold times whose quotients no float can.
_SMALLEST_SHOWN = 1e-100

write_number = "{:g}".format


class PlotLine(NamedTuple):
    """One line of a chart, a reference thin and without marks; `error_bars` may be empty."""

    name: str
    points: Sequence[tuple[float, float]]
    error_bars: Sequence[tuple[float, float]] = ()
    is_reference: bool = False


def draw_lines(
    lines: Sequence[PlotLine],
    kind: str,
    title: str,
    axes: tuple[str, str],
    write_y: Callable[[float], str],
    write_x: Callable[[float], str] | None = None,
    *,
    x_ticks: tuple[float, ...] = (),
    y_ticks: tuple[float, ...] = (),
    is_logarithmic: bool = False,
) -> Picture:
    """Return a chart of at least one point; `kind` is for its label, `axes` names x and y.

    An axis reaches from its first tick to its last; both begin at 0 unless given. Without
    `write_x`, x counts something. On a logarithmic x axis all values are above 0.
    """
    xs = [x for line in lines for x, _ in line.points]
    linear = ticks(max(xs), 0.0 if write_x else 1.0)
    x_ticks = x_ticks or (powers_of_two(xs) if is_logarithmic else linear)
    y_ticks = y_ticks or _y_ticks(lines, is_binary=write_y is format_bytes)
    scale, write_x = (math.log2 if is_logarithmic else float), write_x or write_number
    (left, right), (low, high) = map(scale, (x_ticks[0], x_ticks[-1])), (y_ticks[0], y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (scale(x) - left) / (right - left), min(1.0, (y - low) / (high - low))
        return _LEFT + (_RIGHT - _LEFT) * across, _BOTTOM - (_BOTTOM - _TOP) * up

    first = x_ticks[0]
    paths = [("grid", "".join(f"M{_LEFT:g} {place(first, y)[1]:.1f}H{_RIGHT:g}" for y in y_ticks))]
    texts = [
        Text(x=4, y=18, anchor="start", content=title),
        Text(x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 36, anchor="middle", content=axes[0]),
        Text(x=4, y=_TOP - 14, anchor="start", content=axes[1]),
        *(_x_tick(place(x, low)[0], write_x(x)) for x in x_ticks),
        *(_tick(_LEFT - 6, place(first, y)[1] + 4, "end", write_y(y)) for y in y_ticks),
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
    label = f"{kind}, {title}. {'; '.join(said)}"
    height = _LEGEND_Y + (len(lines) - 1) * _LINE_HEIGHT + 8
    return Picture(label=label, width=_WIDTH, height=height, paths=tuple(paths), texts=tuple(texts))


def line_of_values(name: str, values: Iterable[float | None]) -> PlotLine:
    """Return the line of values numbered from 1, without those that cannot be drawn from 0 up."""
    numbered = ((float(n), value) for n, value in enumerate(values, 1) if value is not None)
    return PlotLine(name=name, points=[(x, y) for x, y in numbered if math.isfinite(y) and y >= 0])


def line_of_intervals(name: str, intervals: Sequence[tuple[int, Interval]]) -> PlotLine:
    """Return the line of centres with their intervals; a single repetition has none."""
    points = [(float(x), one.centre) for x, one in intervals]
    bars = [one.bounds or (one.centre, one.centre) for _, one in intervals]
    return PlotLine(name=name, points=points, error_bars=bars)


def powers_of_two(values: Sequence[float]) -> tuple[float, ...]:
    """Return ticks around positive values for a logarithmic axis, not more than eight."""
    first = math.floor(math.log2(min(values)) + 1e-9)
    last = max(math.ceil(math.log2(max(values)) - 1e-9), first + 1)
    step = math.ceil((last - first) / _MOST_POWERS)
    return tuple(2.0**power for power in range(first, last + step, step))


def ticks(largest: float, least_step: float = 0.0) -> tuple[float, ...]:
    """Return about five round numbers from 0 to at least `largest`.

    Steps of 1, 2 or 5 times a power of ten (Heckbert 1990, "Nice Numbers for Graph Labels").
    """
    if largest < _SMALLEST_SHOWN:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(n * power for n in (1, 2, 5, 10) if n * power * 4 >= largest * (1 - 1e-9))
    step = max(step, least_step)
    return tuple(float(f"{step * n:.12g}") for n in range(math.ceil(largest / step - 1e-9) + 1))


def _y_ticks(lines: Sequence[PlotLine], *, is_binary: bool) -> tuple[float, ...]:
    point = max(y for line in lines for _, y in line.points)
    ends = (high for line in lines for _, high in line.error_bars)
    largest = max(point, min(_HIGHEST_END * point, max(ends, default=point)))
    # The largest power of 1024 up to the value, so that ticks in it are round numbers.
    unit = 1024.0 ** int(math.log(largest, 1024)) if is_binary and largest >= 1 else 1.0
    return tuple(tick * unit for tick in ticks(largest / unit))


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
