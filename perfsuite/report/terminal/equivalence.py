"""The table of a verification, and the lines that explain it."""

from collections.abc import Iterator, Sequence

from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow
from perfsuite.records.recipe import Recipe
from perfsuite.report.rows import NOT_AVAILABLE
from perfsuite.report.terminal.tables import text_table

# The recipe's fields that have a column of their own.
_OWN_COLUMNS = ("parallel", "precision", "checkpointing")
_COLUMNS = (*_OWN_COLUMNS, "with", "check", "status", "error", "limit", "power")


def equivalence_table(reports: Sequence[EquivalenceReport]) -> str:
    """Return the table of one report check by check, of several with the row that decides."""
    rows = []
    for report in reports:
        shown: list[tuple[str, EquivalenceRow]] = [(row.check, row) for row in report.rows]
        if len(reports) > 1:
            checks = " ".join(row.check for row in report.rows)
            shown = [(NOT_AVAILABLE if report.status == "not exercised" else checks, report.worst)]
        for checks, row in shown:
            recipe = row.parallel, row.precision, row.checkpointing
            others = ", ".join(differing_fields(report)) or NOT_AVAILABLE
            limit = "bitwise" if row.limit == 0 else _number(row.limit)
            power = row.power or NOT_AVAILABLE
            rows.append((*recipe, others, checks, row.status, _number(row.error), limit, power))
    return text_table([(title, False) for title in _COLUMNS], rows)


def explanations(reports: Sequence[EquivalenceReport], *, every_row: bool) -> Iterator[str]:
    """Yield a line for each row that is not equivalent, or for every row and absent check."""
    for report in reports:
        for row in report.rows:
            if every_row or row.status != "equivalent":
                checkpointing = [row.checkpointing] if row.checkpointing != "none" else []
                parts = [row.parallel, row.precision, *checkpointing, *differing_fields(report)]
                yield f"{row.check} {row.status} ({', '.join(parts)}): {row.reason}"
        if every_row:
            for check, reason in report.inapplicable.items():
                yield f"{check} does not apply: {reason}"


def differing_fields(report: EquivalenceReport) -> list[str]:
    """Return the recipe's fields that are not the default and have no column, as "name=value"."""
    others = {name: value for name, value in report.recipe.items() if name not in _OWN_COLUMNS}
    return [f"{name}={value}" for name, value in others.items() if value != getattr(Recipe, name)]


def _number(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.1e}" if value else "0"
