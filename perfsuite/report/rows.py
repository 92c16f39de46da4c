"""One row model of cells, and its columns, which feed every format alike.

A row keeps numbers as they were recorded; a column turns one of them into text. What is not
available is None, shown as a dash. Sees records and verdicts only.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from perfsuite import units
from perfsuite.records.cell import CellLine, CellRecord
from perfsuite.records.recipe import Recipe
from perfsuite.records.verdict import CellVerdict, Verdict
from perfsuite.stats import intervals
from perfsuite.system.untrusted import printable

NOTHING: Final = "-"


@dataclass(frozen=True, kw_only=True)
class Past:
    """What one of several runs measured of a cell.

    Attributes:
        when: When the run was saved, for people.
        commit: All digits of its commit, None where the file names none.
        step_time_s: Median of the rounds.
        is_accepted: Only a reviewed exception let the cell through there.
        is_dirty: Whether the tree had uncommitted changes.
    """

    when: str
    commit: str | None
    step_time_s: float
    is_accepted: bool
    is_dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell.

    Attributes:
        name: The test's node id, in one line; what stands there may be markup of any format.
        step_time_s: Median of the rounds in seconds per iteration; None where none was measured.
        rounds_s: Each round; empty where the file keeps none.
        record: What perfsuite knows beside the time; None for a plain benchmark.
        recipe: The record's.
        verdict: What the gate decided; None where it was not asked.
        note: What numbers do not say: why, or what moved.
        history: The runs of the same environment that measured the cell, oldest first.
        is_from_older_run: Whether the newest run has no such cell.
        num_cores: Of the machine; None where the file does not say.
    """

    name: str
    step_time_s: float | None = None
    rounds_s: tuple[float, ...] = ()
    record: CellRecord | None = None
    recipe: Recipe | None = None
    verdict: Verdict | None = None
    note: str | None = None
    history: tuple[Past, ...] = ()
    is_from_older_run: bool = False
    num_cores: int | None = None

    @cached_property
    def spread_ratio(self) -> float | None:
        """Robust standard deviation of the rounds over their median."""
        if len(self.rounds_s) < 2 or not self.step_time_s:
            return None
        return intervals.robust_sd(self.rounds_s) / self.step_time_s

    @cached_property
    def stages_s(self) -> dict[str, float]:
        """Seconds of each stage that was run, in their order; empty for a plain benchmark."""
        if self.record is None:
            return {}
        stages = self.record.stages_s
        named = ((name, getattr(stages, name)) for name in stages.__struct_fields__)
        return {name: seconds for name, seconds in named if seconds is not None}

    @property
    def load_ratio(self) -> float | None:
        """The part of all stages that is waiting for data."""
        total_s = sum(self.stages_s.values())
        if "load" not in self.stages_s or total_s == 0:
            return None
        return self.stages_s["load"] / total_s

    @cached_property
    def subject(self) -> str | None:
        """The workload, with what is done to it where that is not training."""
        if self.record is None:
            return None
        workload = printable(self.record.workload)
        if "evaluation" in self.stages_s and "backward" not in self.stages_s:
            return f"{workload}, evaluated"
        if "load" in self.stages_s and "forward" not in self.stages_s:
            return f"{workload}, loaded"
        return workload


def recipe_of(record: CellRecord) -> Recipe:
    """Return how a recorded cell was trained.

    Raises:
        RecipeError: The recipe is none.
        TypeError: It has a field that a recipe has not.
    """
    fields: dict[str, Any] = {**record.recipe}
    return Recipe(**fields)


def row_of_line(line: CellLine) -> Row | None:
    """Return the row of a cell that has just ended, None where nothing was measured."""
    if line.perfsuite is None or not line.step_times_s:
        return None
    return Row(
        name=printable(line.fullname),
        step_time_s=statistics.median(line.step_times_s),
        rounds_s=line.step_times_s,
        record=line.perfsuite,
        recipe=recipe_of(line.perfsuite),
        verdict=line.perfsuite.verdict,
    )


def row_of_verdict(cell: CellVerdict, note: str | None) -> Row:
    """Return the row of a cell that a gate compared; its time is head's median over pairs."""
    head_s = [head for _, head in cell.raw]
    return Row(
        name=printable(cell.name),
        step_time_s=statistics.median(head_s) if head_s else None,
        verdict=cell.as_record(),
        note=None if note is None else printable(note),
    )


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        key: Its name in code and in CSV, with its unit.
        title: Its name for people.
        value: The raw value, None where it is not available.
        write: Raw value -> text.
        is_number: Whether it is set to the right, and sorted by size.
    """

    key: str
    title: str
    value: Callable[[Row], object]
    write: Callable[..., str] = str
    is_number: bool = True

    def text(self, row: Row) -> str:
        """The value as people read it, "-" where there is none."""
        value = self.value(row)
        return NOTHING if value is None else printable(self.write(value))


def _recipe(name: str) -> Callable[[Row], object]:
    return lambda row: None if row.recipe is None else getattr(row.recipe, name)


def _count(name: str) -> Callable[[Row], object]:
    return lambda row: None if row.record is None else getattr(row.record.counts, name)


def _verdict(name: str) -> Callable[[Row], object]:
    return lambda row: None if row.verdict is None else getattr(row.verdict, name)


def _peak_bytes(row: Row) -> int | None:
    memory = None if row.record is None else row.record.memory
    return None if memory is None else memory.peak_bytes


def _numerics(row: Row) -> str | None:
    numerics = None if row.record is None else row.record.numerics
    return None if numerics is None else numerics.status


def _write_spread(ratio: float) -> str:
    return f"± {units.format_ratio(ratio)}"


def _write_interval(bounds: tuple[float, float]) -> str:
    return " and ".join(map(units.format_change, bounds))


COLUMNS: Final = (
    Column(key="cell", title="cell", value=lambda row: row.name, is_number=False),
    Column(key="verdict", title="verdict", value=_verdict("word"), is_number=False),
    Column(key="change_ratio", title="change", value=_verdict("ratio"), write=units.format_change),
    Column(
        key="interval",
        title="between",
        value=_verdict("interval"),
        write=_write_interval,
        is_number=False,
    ),
    Column(
        key="step_time_s",
        title="step",
        value=lambda row: row.step_time_s,
        write=units.format_seconds,
    ),
    Column(
        key="spread_ratio",
        title="spread",
        value=lambda row: row.spread_ratio,
        write=_write_spread,
    ),
    Column(
        key="samples_per_s",
        title="samples/s",
        value=lambda row: None if row.record is None else row.record.samples_per_s,
        write=units.format_count,
    ),
    Column(
        key="load_ratio",
        title="load",
        value=lambda row: row.load_ratio,
        write=units.format_ratio,
    ),
    Column(key="workload", title="workload", value=lambda row: row.subject, is_number=False),
    Column(key="parallel", title="parallel", value=_recipe("parallel"), is_number=False),
    Column(key="precision", title="precision", value=_recipe("precision"), is_number=False),
    Column(
        key="checkpointing",
        title="checkpointing",
        value=_recipe("checkpointing"),
        is_number=False,
    ),
    Column(key="num_workers", title="workers", value=_recipe("num_workers")),
    Column(key="numerics", title="numerics", value=_numerics, is_number=False),
    Column(key="peak_bytes", title="peak memory", value=_peak_bytes, write=units.format_bytes),
    Column(
        key="saved_activation_bytes",
        title="saved for backward",
        value=_count("saved_activation_bytes"),
        write=units.format_bytes,
    ),
    Column(key="flops", title="FLOPs", value=_count("flops"), write=units.format_count),
    Column(key="collectives", title="collectives", value=_count("collectives")),
)
_BY_KEY: Final = {column.key: column for column in COLUMNS}


def columns_of(*keys: str) -> tuple[Column, ...]:
    """Return columns by key, in the order asked for."""
    return tuple(_BY_KEY[key] for key in keys)


def filled(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns in which any row has a value."""
    return tuple(column for column in columns if any(column.value(row) is not None for row in rows))


@cache
def recipe_fields() -> tuple[str, ...]:
    """The names of a recipe's fields, in order."""
    return tuple(field.name for field in dataclasses.fields(Recipe))


_NOT_EXERCISED = "NOT EXERCISED"


def not_exercised_lines(lines: Sequence[CellLine]) -> list[str]:
    """Return a line with the reason for each cell that this machine could not exercise."""
    return [
        f"{_NOT_EXERCISED} {line.fullname}: {line.reason}"
        for line in lines
        if line.outcome == "skipped" and line.perfsuite is None
    ]
