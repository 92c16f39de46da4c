"""One row model of measured cells, and the table that a terminal shows of it.

Sees records only.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from perfsuite import stats, units
from perfsuite.records import CellLine, CellRecord

# Wide enough that rich never wraps a cell; it uses only what the content needs.
_UNLIMITED_WIDTH = 400
_NOTHING = "-"
_NOT_EXERCISED = "NOT EXERCISED"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell as people read it; "-" where there is no number."""

    workload: str
    parallel: str
    precision: str
    checkpointing: str
    numerics: str
    num_workers: str
    step_time: str
    spread: str
    samples_per_s: str
    load_share: str
    memory: str
    collectives: str


_COLUMNS = (
    ("workload", "workload", "left"),
    ("parallel", "parallel", "left"),
    ("precision", "precision", "left"),
    ("checkpointing", "checkpointing", "left"),
    ("numerics", "numerics", "left"),
    ("workers", "num_workers", "right"),
    ("step", "step_time", "right"),
    ("spread", "spread", "right"),
    ("samples/s", "samples_per_s", "right"),
    ("load", "load_share", "right"),
    ("peak memory", "memory", "right"),
    ("collectives", "collectives", "right"),
)


def make_row(line: CellLine) -> Row | None:
    """Return the row of a cell, None where nothing was measured."""
    record = line.perfsuite
    if record is None or not line.step_times_s:
        return None
    step_time_s = stats.median(line.step_times_s)
    spread = stats.robust_sd(line.step_times_s) / step_time_s if step_time_s else 0.0
    return Row(
        workload=_subject(record),
        parallel=record.recipe["parallel"],
        precision=record.recipe["precision"],
        checkpointing=record.recipe["checkpointing"],
        numerics=record.numerics.status if record.numerics else _NOTHING,
        num_workers=str(record.recipe["num_workers"]),
        step_time=units.format_seconds(step_time_s),
        spread=f"± {units.format_ratio(spread)}",
        samples_per_s=_or_nothing(record.samples_per_s, units.format_count),
        load_share=_load_share(record),
        memory=units.format_bytes(record.memory.peak_bytes) if record.memory else _NOTHING,
        collectives=_or_nothing(record.counts.collectives, str),
    )


def progress_line(line: CellLine) -> str:
    """Return one line for a cell that has just ended."""
    row = make_row(line)
    if row is None:
        reason = (line.reason or "").splitlines()
        return f"{line.fullname}: {line.outcome}" + (f": {reason[0]}" if reason else "")
    return (
        f"{line.fullname}: {row.step_time} {row.spread} a step, {row.samples_per_s} samples/s"
        f"{'' if line.outcome == 'passed' else f' ({line.outcome})'}"
    )


def terminal_table(lines: Sequence[CellLine]) -> str:
    """Return the table of all measured cells as text."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, _, justify in _COLUMNS:
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in filter(None, map(make_row, lines)):
        table.add_row(*(getattr(row, name) for _, name, _ in _COLUMNS))
    return render(table)


def render(table: Table) -> str:
    """Return a table as plain text, each row one line however long."""
    output = io.StringIO()
    Console(file=output, width=_UNLIMITED_WIDTH, color_system=None, markup=False).print(table)
    return "\n".join(text.rstrip() for text in output.getvalue().splitlines() if text.strip())


def not_exercised_lines(lines: Sequence[CellLine]) -> list[str]:
    """Return a line with the reason for each cell that this machine could not exercise."""
    return [
        f"{_NOT_EXERCISED} {line.fullname}: {line.reason}"
        for line in lines
        if line.outcome == "skipped" and line.perfsuite is None
    ]


def _subject(record: CellRecord) -> str:
    """Return the workload, with what is done to it where that is not training."""
    stages = record.stages_s
    if stages.evaluation is not None and stages.backward is None:
        return f"{record.workload}, evaluated"
    if stages.load is not None and stages.forward is None:
        return f"{record.workload}, loaded"
    return record.workload


def _load_share(record: CellRecord) -> str:
    stages = record.stages_s
    parts = [stages.load, stages.forward, stages.backward, stages.optimizer, stages.evaluation]
    total_s = sum(part for part in (*parts, stages.other) if part is not None)
    if stages.load is None or total_s == 0:
        return _NOTHING
    return units.format_ratio(stages.load / total_s)


def _or_nothing(value: float | None, write: object) -> str:
    return _NOTHING if value is None else write(value)  # type: ignore[operator]
