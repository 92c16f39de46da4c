"""The table of a verification, and the lines that explain it. Sees reports only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow
from perfsuite.report.terminal.tables import render

_COLUMNS = (
    "parallel",
    "precision",
    "checkpointing",
    "with",
    "check",
    "status",
    "error",
    "limit",
    "power",
)
_NOTHING = "-"
# The recipe's fields that have a column of their own.
_OWN_COLUMNS = ("parallel", "precision", "checkpointing")


def equivalence_table(reports: Sequence[EquivalenceReport]) -> str:
    """Return the table of one report check by check, of several with a row for each, as text."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(title, no_wrap=True)
    for report in reports:
        for checks, row in _shown_rows(report, is_alone=len(reports) == 1):
            table.add_row(
                row.parallel,
                row.precision,
                row.checkpointing,
                ", ".join(differing_fields(report)) or _NOTHING,
                checks,
                row.status,
                _number(row.error),
                "bitwise" if row.limit == 0 else _number(row.limit),
                row.power or _NOTHING,
            )
    return render(table)


def _shown_rows(report: EquivalenceReport, *, is_alone: bool) -> list[tuple[str, EquivalenceRow]]:
    """Each row with its check's name, or the one that decides with the names of all."""
    if is_alone:
        return [(row.check, row) for row in report.rows]
    checks = " ".join(row.check for row in report.rows)
    return [(_NOTHING if report.status == "not exercised" else checks, report.worst)]


def explanations(reports: Sequence[EquivalenceReport], *, every_row: bool) -> Iterator[str]:
    """Yield a line for each row that is not equivalent, or for every row and absent check.

    Args:
        reports: What was found.
        every_row: Also explain the rows that are equivalent.
    """
    for report in reports:
        for row in report.rows:
            if every_row or row.status != "equivalent":
                yield f"{row.check} {row.status}{_where(report, row)}: {row.reason}"
        if every_row:
            for check, reason in report.inapplicable.items():
                yield f"{check} does not apply: {reason}"


def differing_fields(report: EquivalenceReport) -> list[str]:
    """The recipe's fields that are not the default and have no column, as "name=value"."""
    return [
        f"{name}={value}"
        for name, value in report.recipe.items()
        if name not in _OWN_COLUMNS and value not in (None, False, 0, "none")
        if not (name == "grad_accumulation_steps" and value == 1)
    ]


def _where(report: EquivalenceReport, row: EquivalenceRow) -> str:
    parts = [row.parallel, row.precision]
    if row.checkpointing != "none":
        parts.append(row.checkpointing)
    return f" ({', '.join([*parts, *differing_fields(report)])})"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1e}" if value else "0"
