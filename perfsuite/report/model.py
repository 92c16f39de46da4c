"""What a report says, before any format: rows, charts, advice, verdict and where it all is from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite.report.advice import Advice, advise
from perfsuite.report.charts import Section, draw_sections
from perfsuite.report.rows import Row, printable
from perfsuite.report.runs import Run, rows_of
from perfsuite.report.summary import Summary, by_gravity, summarize


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report.

    Attributes:
        summary: The verdict over all cells.
        rows: Those first that somebody has to look at.
        sections: Charts of the cells that differ in one thing only.
        advice: What the rules find.
        sources: What was read or compared, one line each.
        remarks: What else has to be said, such as cells that the newest run has not.
        tolerance: The slowdown that is accepted, 0.02 = 2 %.
        limit: The slowdown that must not pass.
    """

    summary: Summary
    rows: tuple[Row, ...]
    sections: tuple[Section, ...]
    advice: tuple[Advice, ...]
    sources: tuple[str, ...]
    remarks: tuple[str, ...]
    tolerance: float
    limit: float


def report_on_runs(runs: Sequence[Run], *, tolerance: float, limit: float) -> Report:
    """Return the report on runs: each cell as the newest of them has it, the others as history.

    Args:
        runs: At least one, the newest last.
        tolerance: What verdicts are drawn against.
        limit: What verdicts are drawn against.
    """
    rows = rows_of(runs)
    return report_on_rows(
        rows,
        sources=[run.described for run in reversed(runs)],
        remarks=[*_remarks(rows)],
        tolerance=tolerance,
        limit=limit,
    )


def report_on_rows(
    rows: Sequence[Row],
    *,
    sources: Sequence[str],
    remarks: Sequence[str],
    tolerance: float,
    limit: float,
) -> Report:
    """Return the report on rows from anywhere."""
    ordered = by_gravity(rows)
    return Report(
        summary=summarize(rows),
        rows=tuple(ordered),
        sections=draw_sections(ordered),
        advice=advise(rows),
        sources=tuple(map(printable, sources)),
        remarks=tuple(map(printable, remarks)),
        tolerance=tolerance,
        limit=limit,
    )


def _remarks(rows: Sequence[Row]) -> list[str]:
    older = [row.name for row in rows if row.is_from_older_run]
    if not older:
        return []
    return [f"not in the newest run, shown as an earlier one has them: {', '.join(older)}"]
