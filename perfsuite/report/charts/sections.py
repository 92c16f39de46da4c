"""What a report has beside its cells: sections of pictures, tables and notes, in no format yet."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

# More of one kind are not worth looking through; their numbers are in the tables.
MOST_CHARTS = 24

T = TypeVar("T")


class Text(NamedTuple):
    """A text in a picture, its anchor at x, its base line at y, which grows downwards."""

    x: float
    y: float
    anchor: Literal["start", "middle", "end"]
    content: str


class Picture(NamedTuple):
    """Paths of a style class and an outline, texts over them, and a label that says it in words."""

    label: str
    width: float
    height: float
    paths: tuple[tuple[str, str], ...]
    texts: tuple[Text, ...] = ()


class Grid(NamedTuple):
    """A table of texts; each column has a title, and says whether it holds numbers."""

    title: str
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]


class Section(NamedTuple):
    """Charts, tables and notes on one subject; `num_left_out` further charts are not drawn."""

    title: str
    charts: tuple[Picture, ...]
    num_left_out: int
    notes: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()


def draw_each(
    draw_one: Callable[[T], Picture | None], things: Sequence[T]
) -> tuple[tuple[Picture, ...], int]:
    """Return the charts of the first things that have one, and how many things are left out."""
    rest = iter(things)
    return tuple(islice(filter(None, map(draw_one, rest)), MOST_CHARTS)), len(list(rest))
