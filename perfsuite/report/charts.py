"""Line charts of families of cells: scaling, worker sweeps, checkpointing, losses.

Must not know any format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeVar

from perfsuite import stats
from perfsuite.report.families import Family, families
from perfsuite.report.pictures import Picture, Text
from perfsuite.report.rows import Row
from perfsuite.units import format_bytes, format_count, format_seconds

# As wide as a third of the page shows it, so that its letters are as large as the page's.
_WIDTH: Final = 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 384.0, 52.0, 212.0
_LEGEND_Y: Final = 270.0
_LINE_HEIGHT: Final = 17.0
# More of one kind nobody looks through; their numbers are in the table.
_MOST_CHARTS: Final = 24
# As many as the page's styles tell apart by colour and dashes.
_NUM_STYLES: Final = 6

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        points: x and y, both from 0.
        spreads: Half the length of each point's whisker; empty draws none.
        is_ideal: Drawn thin and without marks.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    spreads: tuple[float, ...] = ()
    is_ideal: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """The charts of one kind.

    Attributes:
        title: The kind.
        charts: The first of them.
        num_left_out: How many there are beside those.
    """

    title: str
    charts: tuple[Picture, ...]
    num_left_out: int


def draw_sections(rows: Sequence[Row]) -> tuple[Section, ...]:
    """Return all charts that the cells have points for, those of the first rows first."""
    by_name = groupby(families(rows, "parallel"), key=lambda family: family.name)
    scaling = [list(group) for _, group in by_name]
    sections = (
        _section("Scaling", _scaling, scaling),
        _section("Loader workers", _workers, families(rows, "num_workers")),
        _section("Memory against recomputation", _checkpointing, families(rows, "checkpointing")),
        _section("Losses by precision", _losses, families(rows, "precision")),
    )
    return tuple(section for section in sections if section.charts)


def _section(
    title: str, draw_one: Callable[[str, T], Picture | None], things: Sequence[T]
) -> Section:
    drawn: list[Picture] = []
    for number, thing in enumerate(things):
        if len(drawn) == _MOST_CHARTS:
            return Section(title=title, charts=tuple(drawn), num_left_out=len(things) - number)
        picture = draw_one(title, thing)
        if picture is not None:
            drawn.append(picture)
    return Section(title=title, charts=tuple(drawn), num_left_out=0)


def _scaling(kind: str, modes: Sequence[Family]) -> Picture:
    lines = [
        Line(
            name=family.variant,
            points=tuple(
                (float(member.place), member.row.record.samples_per_s)
                for member in family.members
                if member.row.record is not None and member.row.record.samples_per_s is not None
            ),
        )
        for family in modes
    ]
    first_x, first_y = lines[0].points[0]
    widest = max(x for line in lines for x, _ in line.points)
    ideal = Line(
        name=f"ideal, in proportion to {first_x:.0f}",
        points=((first_x, first_y), (widest, first_y * widest / first_x)),
        is_ideal=True,
    )
    return draw([*lines, ideal], kind, modes[0].name, ("devices", "samples/s"), format_count)


def _workers(kind: str, family: Family) -> Picture:
    line = Line(
        name="step, ± its spread over rounds",
        points=tuple((float(member.place), member.step_time_s) for member in family.members),
        spreads=tuple(stats.robust_sd(member.row.rounds_s) for member in family.members),
    )
    return draw([line], kind, family.name, ("num_workers", "step"), format_seconds)


def _checkpointing(kind: str, family: Family) -> Picture | None:
    lines = [
        Line(name=str(member.place), points=((member.step_time_s, float(memory.peak_bytes)),))
        for member in family.members
        if member.row.record is not None and (memory := member.row.record.memory) is not None
    ]
    if len(lines) < 2:
        return None
    return draw(lines, kind, family.name, ("step", "peak memory"), format_bytes, format_seconds)


def _losses(kind: str, family: Family) -> Picture | None:
    lines = [
        _loss_line(str(member.place), member.row.record.losses)
        for member in family.members
        if member.row.record is not None
    ]
    lines = [line for line in lines if len(line.points) > 1]
    if len(lines) < 2:
        return None
    return draw(lines, kind, family.name, ("step", "loss"), write_number)


def _loss_line(name: str, losses: Sequence[float]) -> Line:
    pairs = ((float(step), loss) for step, loss in enumerate(losses, 1))
    points = tuple((step, loss) for step, loss in pairs if math.isfinite(loss) and loss >= 0)
    num_left_out = len(losses) - len(points)
    if num_left_out:
        name += f", without {num_left_out} that are not finite or below 0"
    return Line(name=name, points=points)


def draw(
    lines: Sequence[Line],
    kind: str,
    title: str,
    axes: tuple[str, str],
    write_y: Callable[[float], str],
    write_x: Callable[[float], str] | None = None,
) -> Picture:
    """Return the chart of lines, both axes from 0.

    Args:
        lines: At least one point in all.
        kind: What sort of chart it is, for the label.
        title: What it is about.
        axes: Names of x and y.
        write_y: Value on the y axis -> text.
        write_x: Value on the x axis -> text; a plain number unless given.
    """
    # Without a unit it counts something: devices, workers, steps, epochs.
    x_ticks = ticks(
        max(x for line in lines for x, _ in line.points), least_step=0.0 if write_x else 1.0
    )
    y_ticks = _y_ticks(lines, is_binary=write_y is format_bytes)

    write_x = write_x or write_number

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (_RIGHT - _LEFT) * x / x_ticks[-1],
            _BOTTOM - (_BOTTOM - _TOP) * y / y_ticks[-1],
        )

    grid = "".join(f"M{_LEFT:g} {place(0, y)[1]:.1f}H{_RIGHT:g}" for y in y_ticks)
    paths = [("grid", grid)]
    texts = [
        Text(x=4, y=18, anchor="start", content=title),
        Text(x=(_LEFT + _RIGHT) / 2, y=_BOTTOM + 36, anchor="middle", content=axes[0]),
        Text(x=4, y=_TOP - 14, anchor="start", content=axes[1]),
    ]
    texts += [_tick(place(x, 0)[0], _BOTTOM + 17, "middle", write_x(x)) for x in x_ticks]
    texts += [_tick(_LEFT - 6, place(0, y)[1] + 4, "end", write_y(y)) for y in y_ticks]
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


def _y_ticks(lines: Sequence[Line], *, is_binary: bool) -> tuple[float, ...]:
    largest = max(y for line in lines for _, y in line.points)
    largest += max((spread for line in lines for spread in line.spreads), default=0.0)
    unit = _binary_unit(largest) if is_binary else 1.0
    return tuple(tick * unit for tick in ticks(largest / unit))


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
    for (x, y), spread in zip(line.points, line.spreads, strict=False):
        (x0, y0), (_, y1) = place(x, max(y - spread, 0.0)), place(x, y + spread)
        yield style, f"M{x0:.1f} {y0:.1f}V{y1:.1f}"


def ticks(largest: float, *, least_step: float = 0.0) -> tuple[float, ...]:
    """Return about five round numbers from 0 to at least `largest`.

    Steps of 1, 2 or 5 times a power of ten (Heckbert 1990, "Nice Numbers for Graph Labels").

    >>> ticks(8.0), ticks(0.0), ticks(2.0, least_step=1.0)
    ((0.0, 2.0, 4.0, 6.0, 8.0), (0.0, 1.0), (0.0, 1.0, 2.0))
    """
    if largest <= 0:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = next(n * power for n in (1, 2, 5, 10) if n * power * 4 >= largest * (1 - 1e-9))
    step = max(step, least_step)
    count = math.ceil(largest / step - 1e-9)
    return tuple(round(step * number, 12) for number in range(count + 1))


def _binary_unit(num_bytes: float) -> float:
    """The largest power of 1024 up to a number, so that ticks in it are round numbers."""
    return float(1024 ** int(math.log(num_bytes, 1024))) if num_bytes >= 1 else 1.0


def _tick(x: float, y: float, anchor: str, content: str) -> Text:
    return Text(x=round(x, 1), y=round(y, 1), anchor=anchor, content=content)  # type: ignore[arg-type]


def write_number(value: float) -> str:
    """Return a plain number."""
    return f"{value:g}"
