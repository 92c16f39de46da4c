"""Verdicts as people read them: a table, and a sentence for what numbers do not say.

Must not know how a verdict was reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.table import Table

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.summary import beside_numbers, between
from perfsuite.report.terminal.tables import render
from perfsuite.system.untrusted import printable, printable_lines
from perfsuite.units import format_change


def verdict_table(cells: Sequence[CellVerdict]) -> str:
    """Return the table of all cells as text, one row each."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("cell", "verdict"):
        table.add_column(title, no_wrap=True)
    for title in ("change", "between", "pairs"):
        table.add_column(title, no_wrap=True, justify="right")
    for cell in cells:
        table.add_row(
            printable(cell.name),
            cell.word,
            "" if cell.ratio is None else format_change(cell.ratio),
            between(cell),
            str(cell.num_pairs or ""),
        )
    return render(table)


def verdict_lines(
    cells: Sequence[CellVerdict], refusal: str | None, differs: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a gate: what was compared, the table, and what it does not say."""
    yield from (printable(f"{name}: {value}") for name, value in differs.items())
    if refusal is not None:
        yield printable_lines(f"not compared: {refusal}")
    if cells:
        yield verdict_table(cells)
    for cell in cells:
        text = beside_numbers(cell)
        if text and text != refusal:
            yield printable_lines(f"{printable(cell.name)}: {text}")
