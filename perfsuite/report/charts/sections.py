"""A part of a report beside its cells: what has to be said, tables and charts.

Must not know any format, nor what the parts are about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from perfsuite.report.charts.pictures import Picture

# More of one kind nobody looks through; their numbers are in the tables.
MOST_CHARTS: Final = 24

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table whose cells are text already.

    Attributes:
        title: What it is about.
        columns: Title of each column, and whether it holds numbers.
        rows: As many texts each as there are columns.
    """

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """What is shown of one kind.

    Attributes:
        title: The kind.
        charts: The first of them.
        num_left_out: How many there are beside those.
        notes: What numbers alone do not say, a sentence each.
        grids: Its tables.
    """

    title: str
    charts: tuple[Picture, ...]
    num_left_out: int
    notes: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()


def draw_each(
    draw_one: Callable[[T], Picture | None], things: Sequence[T]
) -> tuple[tuple[Picture, ...], int]:
    """Return the charts of the first things that have one, and how many things are left out."""
    drawn: list[Picture] = []
    for number, thing in enumerate(things):
        if len(drawn) == MOST_CHARTS:
            return tuple(drawn), len(things) - number
        picture = draw_one(thing)
        if picture is not None:
            drawn.append(picture)
    return tuple(drawn), 0
