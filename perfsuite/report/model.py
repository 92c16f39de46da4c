"""What a report says, before any format: rows, charts, advice, verdict, and its sources."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.advice import Advice, advise
from perfsuite.report.charts.family_charts import draw_families
from perfsuite.report.charts.learning_curves import Training, draw_learning_curves
from perfsuite.report.charts.sections import Section
from perfsuite.report.rows import Row
from perfsuite.report.runs import Run, rows_of
from perfsuite.report.scaling.section import draw_scaling
from perfsuite.report.scaling.series import Scaling, describe_scaling
from perfsuite.report.summary import Summary, by_severity, exceptions_of, reason_text, summarize
from perfsuite.system.untrusted import printable


class Report(NamedTuple):
    """A report, the most severe verdicts first; sources and remarks have a line each."""

    summary: Summary
    rows: tuple[Row, ...]
    scaling: Scaling
    sections: tuple[Section, ...]
    advice: tuple[Advice, ...]
    sources: tuple[str, ...]
    remarks: tuple[str, ...]
    # What a verdict is drawn against that names none itself, 0.02 = 2 %.
    tolerance: float = 0.02
    limit: float = 0.05


def report_on_runs(runs: Sequence[Run], trainings: Sequence[Training] = ()) -> Report:
    """Return the report on at least one run, the newest last, with learning curves of trainings."""
    rows = rows_of(runs)
    newest = runs[-1]
    older = [row.name for row in rows if row.is_from_older_run]
    remark = f"not in the newest run, shown as an earlier one has them: {', '.join(older)}"
    return report_on_rows(
        rows,
        sources=[*(run.described for run in reversed(runs)), *(one.described for one in trainings)],
        remarks=[*newest.gaps, *newest.remarks, *([remark] if older else []), *newest.missing],
        summary=summarize(rows, num_failed=newest.num_failed, gaps=newest.gaps),
        trainings=trainings,
    )


def report_on_verdicts(
    cells: Sequence[CellVerdict], *, refusal: str | None, differs: Mapping[str, str]
) -> Report:
    """Return the report on a gate: what its arms differ in, and why nothing was compared at all."""
    rows = [
        Row(
            name=printable(cell.name),
            step_time_s=statistics.median(head for _, head in cell.raw) if cell.raw else None,
            verdict=cell.as_record(),
            note=printable(reason_text(cell)) or None,
        )
        for cell in cells
    ]
    refused = Summary(word="NO VERDICT", text=printable(f"not compared: {refusal}"))
    return report_on_rows(
        rows,
        sources=[f"{name}: {value}" for name, value in differs.items()],
        remarks=[f"accepted: {text}" for text in exceptions_of(cells)],
        summary=None if refusal is None else refused,
    )


def report_on_rows(
    rows: Sequence[Row],
    *,
    sources: Sequence[str],
    remarks: Sequence[str],
    summary: Summary | None = None,
    trainings: Sequence[Training] = (),
) -> Report:
    """Return the report on rows of any source, with their own summary unless one is given."""
    shown = by_severity(rows)
    scaling = describe_scaling(shown)
    return Report(
        summary=summary or summarize(rows),
        rows=tuple(shown),
        scaling=scaling,
        sections=(*draw_scaling(scaling), *draw_families(shown), *draw_learning_curves(trainings)),
        advice=advise(rows),
        sources=tuple(map(printable, sources)),
        remarks=tuple(map(printable, remarks)),
    )
