"""The report as CSV: every column in base units, and every field of the recipe.

A text that a spreadsheet would calculate is stored as text, with an apostrophe before it.
"""

from __future__ import annotations

import csv
import io
from typing import Final

from perfsuite.report.model import Report
from perfsuite.report.rows import COLUMNS, Row, recipe_fields

# What makes a spreadsheet calculate (OWASP, "CSV Injection").
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_STAGES: Final = ("load", "forward", "backward", "optimizer", "evaluation", "other")
# Both bounds get a column of their own, and a recipe's fields come with the others of the recipe.
_ELSEWHERE: Final = ("interval", *recipe_fields())


def to_csv(report: Report) -> str:
    """Return a line for each cell; an empty field is a number that is not available."""
    columns = [column for column in COLUMNS if column.key not in _ELSEWHERE]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(
        [
            *(column.key for column in columns),
            "interval_low_ratio",
            "interval_high_ratio",
            "tolerance_ratio",
            "limit_ratio",
            "rounds",
            *(f"{stage}_s" for stage in _STAGES),
            *recipe_fields(),
        ]
    )
    for row in report.rows:
        values = [
            *(column.value(row) for column in columns),
            *_bounds(row),
            len(row.rounds_s) or None,
            *(row.stages_s.get(stage) for stage in _STAGES),
            *(
                None if row.recipe is None else getattr(row.recipe, name)
                for name in recipe_fields()
            ),
        ]
        writer.writerow([guard(value) for value in values])
    return output.getvalue()


def _bounds(row: Row) -> tuple[float | None, ...]:
    """What the interval spans, and the tolerance and limit that it was held against."""
    if row.verdict is None:
        return (None,) * 4
    interval = row.verdict.interval or (None, None)
    return (*interval, row.verdict.tolerance, row.verdict.limit)


def guard(value: object) -> object:
    """Return a value that no spreadsheet calculates.

    >>> guard("=1+1"), guard(-1.5)
    ("'=1+1", -1.5)
    """
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
