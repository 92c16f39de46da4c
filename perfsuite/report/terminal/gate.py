"""Verdicts as a terminal shows them: what was compared, a table, and the reasons below it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.rows import Column, at
from perfsuite.report.summary import exceptions_of, interval_text, reason_text
from perfsuite.report.terminal.tables import table_of
from perfsuite.system.untrusted import printable, printable_lines
from perfsuite.units import counted, format_change

_COLUMNS: Final[tuple[Column[CellVerdict], ...]] = (
    Column("", "cell", at("name"), is_number=False),
    Column("", "verdict", at("shown"), is_number=False),
    Column("", "change", at("ratio"), format_change, missing=""),
    Column("", "between", interval_text),
    Column("", "pairs", lambda cell: cell.num_pairs or ""),
)


def verdict_table(cells: Sequence[CellVerdict]) -> str:
    """Return the table of all cells as text, one row each."""
    return table_of(_COLUMNS, cells)


def verdict_lines(
    cells: Sequence[CellVerdict], refusal: str | None, differs: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a gate: what was compared, the table, and what it does not say."""
    yield from (printable(f"{name}: {value}") for name, value in differs.items())
    if refusal is not None:
        yield printable_lines(f"not compared: {refusal}")
    if cells:
        yield verdict_table(cells)
    for text, number in Counter(filter(None, (cell.compared_with for cell in cells))).items():
        yield printable(f"{counted(number, 'cell')}: {text}")
    for cell in cells:
        text = reason_text(cell)
        if text and text != refusal and cell.by != "identical":  # said once above
            yield printable_lines(f"{printable(cell.name)}: {text}")
    if cells and all(cell.word == "NEW" for cell in cells):
        yield "nothing to compare yet: commit these benchmarks, and the next change is judged"
    if cells and all(cell.policy == "quarantined" for cell in cells):
        yield "nothing was judged: every cell is quarantined, so no verdict counts"
    for text in exceptions_of(cells):
        yield printable(f"accepted: {text}")
