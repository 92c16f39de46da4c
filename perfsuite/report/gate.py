"""Verdicts as people read them: a table, and a sentence for what numbers do not say.

Must not know how a verdict was reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.table import Table

from perfsuite.report.tables import render
from perfsuite.units import format_change, format_seconds
from perfsuite.untrusted import printable, printable_lines
from perfsuite.verdicts import CellVerdict, Explanation


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
            _between(cell),
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


def sentence(cell: CellVerdict) -> str:
    """Return a verdict in one sentence, for the report of its test."""
    parts = [cell.word]
    if cell.ratio is not None and cell.num_pairs > 1:
        parts.append(
            f"{format_change(cell.ratio)} against the base, between {_between(cell)} "
            f"({cell.num_pairs} pairs)"
        )
    return printable_lines("; ".join([": ".join(parts), *filter(None, [beside_numbers(cell)])]))


def _between(cell: CellVerdict) -> str:
    if cell.interval is None or cell.num_pairs < 2:
        return ""
    return " and ".join(map(format_change, cell.interval))


def beside_numbers(cell: CellVerdict) -> str:
    """Return what the numbers of a verdict do not say: why, and what moved; "" if nothing."""
    texts = [cell.reason] if cell.reason else []
    if cell.explanation is not None:
        texts.append(explained(cell.explanation))
    if cell.word == "INCONCLUSIVE" and math.isfinite(cell.detectable or math.inf):
        assert cell.detectable is not None
        seen = format_change(1 + cell.detectable)
        texts.append(f"the smallest slowdown that it could have seen is {seen}")
    return "; ".join(texts)


def explained(explanation: Explanation) -> str:
    """Return an explanation in words, what moved most first."""
    texts = []
    if explanation.moved_stage is not None:
        seconds = explanation.stages[explanation.moved_stage]
        texts.append(f"moved most: {explanation.moved_stage} {_moved(*seconds)}")
    elif explanation.operators:
        first = explanation.operators[0]
        texts.append(f"moved most: {first['name']} {_moved(*first['self_s'])}")
    if explanation.counts:
        changes = (f"{name} {base} -> {head}" for name, (base, head) in explanation.counts.items())
        texts.append(f"counts: {', '.join(changes)}")
    return "; ".join(texts) or "no stage, count or function moved by itself"


def _moved(base_s: float | None, head_s: float | None) -> str:
    if base_s is None or head_s is None:
        known_s, side = (head_s, "head") if base_s is None else (base_s, "base")
        return f"{format_seconds(known_s or 0.0)} in {side} alone"
    change = f" ({format_change(head_s / base_s)})" if base_s > 0 else ""
    return f"{format_seconds(base_s)} -> {format_seconds(head_s)}{change}"
