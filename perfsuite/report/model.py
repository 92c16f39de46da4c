"""What a report says, before any format: rows, charts, advice, verdict and where it all is from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.advice import Advice, advise
from perfsuite.report.charts.family_charts import draw_sections
from perfsuite.report.charts.learning_curves import Training, draw_curves
from perfsuite.report.charts.sections import Section
from perfsuite.report.rows import Row, row_of_verdict
from perfsuite.report.runs import Run, rows_of
from perfsuite.report.scaling.charts import draw_scaling
from perfsuite.report.scaling.estimates import Scaling, describe_scaling
from perfsuite.report.summary import Summary, beside_numbers, by_gravity, summarize, withhold
from perfsuite.system.untrusted import printable


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report.

    Attributes:
        summary: The verdict over all cells.
        rows: Those first that somebody has to look at.
        scaling: What the cells say of weak and strong scaling.
        sections: Tables and charts of the cells that differ in one thing only.
        advice: What the rules find.
        sources: What was read or compared, one line each.
        remarks: What else has to be said, such as cells that the newest run has not.
        tolerance: The slowdown that is accepted, 0.02 = 2 %.
        limit: The slowdown that must not pass.
    """

    summary: Summary
    rows: tuple[Row, ...]
    scaling: Scaling
    sections: tuple[Section, ...]
    advice: tuple[Advice, ...]
    sources: tuple[str, ...]
    remarks: tuple[str, ...]
    tolerance: float
    limit: float


def report_on_runs(
    runs: Sequence[Run], trainings: Sequence[Training] = (), *, tolerance: float, limit: float
) -> Report:
    """Return the report on runs: each cell as the newest of them has it, the others as history.

    Args:
        runs: At least one, the newest last.
        trainings: Whose learning curves are shown beside them.
        tolerance: What verdicts are drawn against.
        limit: What verdicts are drawn against.
    """
    rows = rows_of(runs)
    newest = runs[-1]
    made = report_on_rows(
        rows,
        sources=[
            *(run.described for run in reversed(runs)),
            *(training.described for training in trainings),
        ],
        remarks=[*newest.gaps, *newest.remarks, *_remarks(rows), *newest.missing],
        tolerance=tolerance,
        limit=limit,
    )
    return dataclasses.replace(
        made,
        summary=withhold(made.summary, num_failed=newest.num_failed, gaps=newest.gaps),
        sections=(*made.sections, *draw_curves(trainings)),
    )


def report_on_verdicts(
    cells: Sequence[CellVerdict],
    *,
    refusal: str | None,
    differs: Mapping[str, str],
    tolerance: float,
    limit: float,
) -> Report:
    """Return the report on a gate.

    Args:
        cells: What it says of each cell.
        refusal: Why nothing was compared at all; None where something was.
        differs: What differs between the arms, for people.
        tolerance: The slowdown that was accepted.
        limit: The slowdown that must not pass.
    """
    made = report_on_rows(
        [row_of_verdict(cell, beside_numbers(cell) or None) for cell in cells],
        sources=[f"{name}: {value}" for name, value in differs.items()],
        remarks=[],
        tolerance=tolerance,
        limit=limit,
    )
    if refusal is None:
        return made
    text = printable(f"not compared: {refusal}")
    return dataclasses.replace(made, summary=Summary(word="NO VERDICT", text=text))


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
    scaling = describe_scaling(ordered)
    return Report(
        summary=summarize(rows),
        rows=tuple(ordered),
        scaling=scaling,
        sections=(*draw_scaling(scaling), *draw_sections(ordered)),
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
