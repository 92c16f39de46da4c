"""Tables as CSV: every column of a report's cells in base units, and the stages of a profile."""

import csv
import io
from collections.abc import Iterable, Sequence

from perfsuite.records.cell import StageTimes
from perfsuite.records.profile import Profile
from perfsuite.report.model import Report
from perfsuite.report.rows import COLUMNS, RECIPE_FIELDS
from perfsuite.system.untrusted import printable

# What makes a spreadsheet calculate (OWASP, "CSV Injection").
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_STAGES = StageTimes.__struct_fields__
_BOUNDS = ("interval_low_ratio", "interval_high_ratio", "tolerance_ratio", "limit_ratio")
# Each bound gets a column of its own, and a recipe's fields come with the others of the recipe.
_ELSEWHERE = ("interval", *RECIPE_FIELDS)


def to_csv(report: Report) -> str:
    """Return a line for each cell; an empty field is a number that is not available."""
    columns = [column for column in COLUMNS if column.key not in _ELSEWHERE]
    keys, stages = (column.key for column in columns), (f"{stage}_s" for stage in _STAGES)
    lines: list[list[object]] = [[*keys, *_BOUNDS, "rounds", *stages, *RECIPE_FIELDS]]
    for row in report.rows:
        verdict = row.verdict
        low, high = (verdict and verdict.interval) or (None, None)
        line = [
            *(column.value(row) for column in columns),
            *(low, high, getattr(verdict, "tolerance", None), getattr(verdict, "limit", None)),
            len(row.rounds_s) or None,
            *(row.stages_s.get(stage) for stage in _STAGES),
            *(getattr(row.recipe, name, None) for name in RECIPE_FIELDS),
        ]
        lines.append(line)
    return _write(lines)


def profile_csv(profile: Profile) -> str:
    """Return the stages as CSV with a header, in seconds and as ratios of the wall time."""
    lines = [*profile.stages_s.as_rows(), ("total", profile.wall_s)]
    shares = ((name, f"{s:.6f}", f"{s / profile.wall_s:.6f}") for name, s in lines)
    return _write([("stage", "seconds", "share"), *shares])


def _write(lines: Iterable[Sequence[object]]) -> str:
    output = io.StringIO()
    csv.writer(output, lineterminator="\n").writerows(map(escape_formula, line) for line in lines)
    return output.getvalue()


def escape_formula(value: object) -> object:
    """Return a value that no spreadsheet calculates, and no terminal obeys."""
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(_FORMULA_STARTS) else value)
