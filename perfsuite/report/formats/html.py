"""The report as one self-contained HTML file, and its charts as SVG files.

The page fetches nothing, and its own policy forbids it: styles and script are named by their
hashes, so that no name of a cell can run. Every value is escaped by the template engine.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from perfsuite.report.charts import sparklines
from perfsuite.report.charts.sections import Picture
from perfsuite.report.formats.templating import read, render
from perfsuite.report.model import Report
from perfsuite.report.rows import COLUMNS, Column, Row, columns_of, filled

# The pictures come after what most people look at.
_PICTURES_AT = 1 + COLUMNS.index(columns_of("peak_bytes")[0])
_COLUMNS: tuple[Column[Row], ...] = (
    *COLUMNS[:_PICTURES_AT],
    Column("stages", "stages", sparklines.draw_stages, is_number=False),
    Column("history", "history", sparklines.draw_history, is_number=False),
    *COLUMNS[_PICTURES_AT:],
)
# What the first screen shows of a cell that moved, and of how many; the table has all.
_OF_MOVED = columns_of("change_ratio", "interval", "step_time_s")
_MOST_MOVED = 5
_UNMOVED = ("PASS", "NEW", "SKIPPED")
_PADDING = "1rem"
_PICTURE_WIDTH = "104px"
# The arrow behind the title of a sorted column.
_SORTED = " >"
# Capitals, in bold, and the widest of all over a digit, in DejaVu Sans, Arial and Segoe UI.
_CAPITAL, _WIDEST = 1.3, 1.6


class _Cell:
    """One cell of the table; it is sorted by `order`, by its text where that is None."""

    def __init__(self, column: Column[Row], row: Row, report: Report) -> None:
        value = column.value(row)
        self.order = value if isinstance(value, int | float) else None
        self.text = "" if isinstance(value, Picture) else column.text(row)
        self.picture = value if isinstance(value, Picture) else None
        if column.key == "spread_ratio":
            self.picture = sparklines.draw_rounds(row)
        elif column.key == "interval":
            self.picture = _gauge(row, report)


def html_page(report: Report, *, home: str = "", links: Mapping[str, str] = {}) -> str:
    """Return the page; it leads to `home`, and from cells by their names to `links`."""
    columns = filled(_COLUMNS, report.rows)
    judged = [(row, row.verdict) for row in report.rows if row.verdict is not None]
    moved = [row for row, verdict in judged if verdict.word not in _UNMOVED]
    compared = [(verdict.ratio, row) for row, verdict in judged if verdict.ratio is not None]
    rows = [[_Cell(column, row, report) for column in columns] for row in report.rows]
    of_columns = render("columns.css.j2", columns=columns, tracks=list(_tracks(columns, rows)))
    style = read("picture.css") + read("page.css") + of_columns + "\n"
    script = read("page.js")
    return render(
        "page.html.j2",
        report=report,
        home=home,
        links=links,
        columns=columns,
        rows=rows,
        words=sorted({verdict.word for _, verdict in judged}),
        moved=[(row, _gauge(row, report)) for row in moved[:_MOST_MOVED]],
        num_moved=len(moved),
        of_moved=_OF_MOVED,
        slowest=max(compared, key=itemgetter(0))[1] if compared else None,
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
    )


def svg_file(picture: Picture) -> str:
    """Return a chart as a file of its own."""
    return render("figure.svg.j2", drawn=picture, style=read("picture.css"))


def _gauge(row: Row, report: Report) -> Picture | None:
    return sparklines.draw_verdict(row.verdict, report.tolerance, report.limit)


def _tracks(columns: Sequence[Column[Row]], rows: Sequence[Sequence[_Cell]]) -> Iterator[str]:
    """The widths, on wide screens, of all columns but the first.

    Rows that are grids of their own with equal tracks need not be laid out while out of sight;
    those of a table do, all of them, whenever one is hidden.
    """
    for number, column in enumerate(columns[1:], 1):
        texts = {column.title + _SORTED, *(row[number].text for row in rows)}
        widths = [f"{max(map(_num_digits, texts)):.0f}ch"]
        widths += [_PICTURE_WIDTH] if any(row[number].picture for row in rows) else []
        yield f"calc(max({', '.join(widths)}) + {_PADDING})"


def _num_digits(text: str) -> float:
    """The width of a text, in widths of a digit, in any common font without serifs."""
    return sum(_WIDEST if char in "mwMW%" else _CAPITAL if char.isupper() else 1.0 for char in text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
