"""One row for each cell, and the columns of its tables, which feed every format alike.

Numbers are as they were recorded; one that is not available is None, shown as a dash.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from perfsuite.records.cell import CellLine, CellRecord
from perfsuite.records.equivalence import NO_REFERENCE
from perfsuite.records.recipe import Recipe
from perfsuite.records.verdict import Verdict
from perfsuite.stats import intervals
from perfsuite.system.untrusted import printable
from perfsuite.units import format_bytes, format_change, format_count, format_ratio, format_seconds

NOT_AVAILABLE = "-"
# What a clock can resolve, and more than any session takes: a file may hold any number.
_SHORTEST_S = 1e-9
_LONGEST_S = 1e6
# Part of a step, or what rounds differ by where that is more: ranks on busy cores differ by less.
_RANK_LAGS = 0.10
# What pytest raises where the test itself says so, and not the machine, and what people read.
_SKIPS = {"Skipped": "SKIPPED", "XFailed": "XFAIL"}

T = TypeVar("T")


class HistoryPoint(NamedTuple):
    """What one of several runs measured of a cell; `is_accepted` by a reviewed exception alone."""

    when: str
    commit: str | None
    step_time_s: float
    is_accepted: bool
    is_dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell."""

    name: str  # the test's node id, in one line; it may hold markup of any format
    step_time_s: float | None = None  # the median of the rounds
    rounds_s: tuple[float, ...] = ()  # empty where the file keeps none
    record: CellRecord | None = None  # None for a plain benchmark
    recipe: Recipe | None = None
    verdict: Verdict | None = None
    note: str | None = None  # what numbers do not say
    # The runs of the same environment that measured the cell, oldest first.
    history: tuple[HistoryPoint, ...] = ()
    is_from_older_run: bool = False
    num_cores: int | None = None  # the machine's

    @cached_property
    def spread_ratio(self) -> float | None:
        """Robust standard deviation of the rounds over their median."""
        if len(self.rounds_s) < 2 or not self.step_time_s:
            return None
        return intervals.robust_sd(self.rounds_s) / self.step_time_s

    @cached_property
    def launches_s(self) -> tuple[float, ...]:
        """The step times of launches of the same code: this one, and those of earlier runs."""
        own = self.history[-1] if self.history else None
        times_s = [self.step_time_s or 0.0]
        # The code of a run of a dirty tree, or of no commit, is unknown.
        if own is not None and own.commit is not None and not own.is_dirty:
            same = (one for one in self.history if one.commit == own.commit and not one.is_dirty)
            times_s = [point.step_time_s for point in same]
        return tuple(filter(is_plausible_time, times_s))

    def shares_cores(self, num_processes: int) -> bool:
        """Whether a CPU has fewer cores than so many processes; False where that is not known.

        A record does not say over how many hosts torchrun spread its ranks: they count as one's.
        """
        is_on_cpu = self.record is not None and self.record.device == "cpu"
        return is_on_cpu and self.num_cores is not None and num_processes > self.num_cores

    @cached_property
    def stages_s(self) -> dict[str, float]:
        """Seconds of each stage that was run, in their order; empty for a plain benchmark.

        They are disjoint: beside an accelerator the host loads while the device computes, and only
        what the device may have waited for is "load" here.
        """
        if self.record is None:
            return {}
        named = msgspec.structs.asdict(self.record.stages_s)
        found = {name: seconds for name, seconds in named.items() if seconds is not None}
        if self.record.device != "cpu" and {"load", "other"} <= found.keys():
            found["load"] = found.pop("load_exposed", min(found["load"], found["other"]))
            found["other"] -= found["load"]
        return found

    @property
    def load_ratio(self) -> float | None:
        """The part of all stages that is waiting for data."""
        total_s = sum(self.stages_s.values())
        return self.stages_s["load"] / total_s if "load" in self.stages_s and total_s else None

    def of_each_device(self, rate: float | None) -> float | None:
        """The part of a rate that each of several devices has."""
        if self.record is None or rate is None:
            return None
        # One process of DataParallel has several.
        num_devices = self.recipe.plan.size if self.recipe else self.record.world_size
        return rate / num_devices if num_devices > 1 else None

    @cached_property
    def slow_rank(self) -> str | None:
        """The stage where one rank delays the others, in words, if any does much."""
        times_s = None if self.record is None else self.record.rank_stages_s
        if not times_s or not self.step_time_s:
            return None
        lags_s = {name: max(one) - statistics.median_low(one) for name, one in times_s.items()}
        name = max(lags_s, key=lags_s.__getitem__)
        if lags_s[name] < max(_RANK_LAGS, self.spread_ratio or 0.0) * self.step_time_s:
            return None
        slowest_s = max(times_s[name])
        slowest, median = map(format_seconds, (slowest_s, slowest_s - lags_s[name]))
        rank = f"rank {times_s[name].index(slowest_s)}"
        return f"{rank} takes {slowest} in {printable(name)}, the median rank {median}"

    @cached_property
    def subject(self) -> str | None:
        """The workload, with what is done to it where that is not training."""
        if self.record is None:
            return None
        workload = printable(self.record.workload)
        if self.recipe is None:  # a user's own code, whose parameters are the test's
            return workload + "".join(self.name.partition("[")[1:])
        if "evaluation" in self.stages_s and "backward" not in self.stages_s:
            return f"{workload}, evaluated"
        if "load" in self.stages_s and "forward" not in self.stages_s:
            return f"{workload}, loaded"
        return workload


def is_plausible_time(seconds: float) -> bool:
    """Return whether a clock can have measured a time; none measures NaN."""
    return _SHORTEST_S <= seconds <= _LONGEST_S


def recipe_of(record: CellRecord) -> Recipe | None:
    """Return how a cell was trained, None of a user's own code; raises RecipeError or TypeError."""
    told: dict[str, Any] | None = record.recipe
    return None if told is None else Recipe(**told)


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


class Column(NamedTuple, Generic[T]):
    """One column of a table of T."""

    key: str  # its name, with its unit, in code, CSV and JSON
    title: str
    value: Callable[[T], object]
    write: Callable[..., str] = str
    is_number: bool = True  # then it is aligned to the right and sorted by size
    missing: str = NOT_AVAILABLE  # what people read where there is no value

    def text(self, row: T) -> str:
        """The value as people read it."""
        value = self.value(row)
        return self.missing if value is None else printable(self.write(value))


def at(path: str) -> Callable[[Any], Any]:
    """Return a getter of a dotted attribute; it gives None where a part of the path is None."""

    def get(found: Any) -> Any:
        for name in path.split("."):
            found = None if found is None else getattr(found, name)
        return found

    return get


def _each(path: str) -> Callable[[Row], float | None]:
    return lambda row: row.of_each_device(at(path)(row))


def _write_mathematics(change: str) -> str:
    """The change, without the reason why there is none to tell, which is a sentence."""
    return "cannot be told" if change.startswith("cannot be told") else change


def _text(key: str, path: str, title: str = "", write: Callable[..., str] = str) -> Column[Row]:
    return Column(key, title or key, at(path), write, is_number=False)


def _count(key: str, title: str, write: Callable[..., str] = str) -> Column[Row]:
    return Column(key, title, at(f"record.counts.{key}"), write)


COLUMNS: tuple[Column[Row], ...] = (
    _text("cell", "name"),
    _text("verdict", "verdict.word"),
    _text("policy", "verdict.policy"),
    Column("change_ratio", "change", at("verdict.ratio"), format_change),
    _text("interval", "verdict.interval", "between", lambda x: " and ".join(map(format_change, x))),
    Column("step_time_s", "step", at("step_time_s"), format_seconds),
    Column("spread_ratio", "spread", at("spread_ratio"), lambda it: f"± {format_ratio(it)}"),
    _text("numerics", "record.numerics.status"),
    Column("peak_bytes", "peak memory", at("record.memory.peak_bytes"), format_bytes),
    Column("step_p95_s", "p95", at("record.step_s.p95"), format_seconds),
    Column("step_p99_s", "p99", at("record.step_s.p99"), format_seconds),
    Column("samples_per_s", "samples/s", at("record.samples_per_s"), format_count),
    Column("tokens_per_s", "tokens/s", at("record.tokens_per_s"), format_count),
    Column("device_samples_per_s", "samples/s each", _each("record.samples_per_s"), format_count),
    Column("device_tokens_per_s", "tokens/s each", _each("record.tokens_per_s"), format_count),
    Column("tflops", "TFLOP/s each", at("record.tflops"), "{:.3g}".format),
    Column("mfu", "MFU", at("record.mfu"), format_ratio),
    Column("hfu", "HFU", at("record.hfu"), format_ratio),
    _text("slow_rank", "slow_rank", "slow rank"),
    Column("load_ratio", "load", at("load_ratio"), format_ratio),
    _text("workload", "subject"),
    _text("parallel", "recipe.parallel"),
    _text("precision", "recipe.precision"),
    _text("checkpointing", "recipe.checkpointing"),
    Column("num_workers", "workers", at("recipe.num_workers")),
    _text("numerics_change", "verdict.numerics_change", "mathematics", _write_mathematics),
    _count("saved_activation_bytes", "saved for backward", format_bytes),
    _count("flops", "FLOPs", format_count),
    _count("model_flops", "model FLOPs", format_count),
    _count("collectives", "collectives"),
    _count("host_syncs", "host waits"),
    _count("graph_breaks", "graph breaks"),
    _count("recompiles", "recompiles"),
    Column("compile_s", "compiling", at("record.compile_s"), format_seconds),
    Column("energy_j", "J an iteration", at("record.energy_j"), "{:.3g}".format),
)
_BY_KEY = {column.key: column for column in COLUMNS}
RECIPE_FIELDS = tuple(field.name for field in fields(Recipe))


def columns_of(*keys: str) -> tuple[Column[Row], ...]:
    """Return columns by key, in the order given."""
    return tuple(_BY_KEY[key] for key in keys)


def numbers_of(row: Row) -> dict[str, float]:
    """Return each number that was measured of a cell and is finite, by its column's key."""
    found = {column.key: column.value(row) for column in COLUMNS if column.key != "num_workers"}
    return {k: v for k, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}


def filled(columns: Sequence[Column[T]], rows: Sequence[T]) -> tuple[Column[T], ...]:
    """Return the columns that have a value in any row."""
    return tuple(column for column in columns if any(column.value(row) is not None for row in rows))


def slow_rank_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each cell where one rank delays the others."""
    return [f"SLOW RANK {row.name}: {row.slow_rank}" for row in rows if row.slow_rank is not None]


def missing_lines(lines: Iterable[CellLine]) -> Iterator[str]:
    """Yield a line with the reason for each cell without proof, power, counts or loss."""
    for line in lines:
        status = at("perfsuite.numerics.status")(line)
        told = [(status != "no power", "POWER", "numerics")]
        told.append((status != "not exercised", "PROOF", "numerics"))
        has_recipe = line.perfsuite is None or at("perfsuite.recipe")(line) is not None
        told += [(has_recipe, "COUNTS", "ops"), (has_recipe, "LOSS", "losses")]
        for what in ("small gradients", "frozen parameters", "initial weights"):
            told.append((has_recipe, f"PROOF OF {what.upper()}", f"numerics of {what}"))
        # The reason of a cell that passed says of each number why there is none.
        for is_fine, word, name in told:
            why = re.search(rf"(?:^|; )no {name}: (.+?)(?=; no [\w ]+: |$)", line.reason or "")
            if not is_fine and why is not None and why[1] != NO_REFERENCE:
                yield f"NO {word} {line.fullname}: {why[1]}"


def skipped_lines(lines: Iterable[CellLine]) -> Iterator[str]:
    """Yield a line with the reason for each cell without a number that did not fail."""
    for line in lines:
        if line.outcome == "skipped" and line.perfsuite is None:
            kind, _, reason = (line.reason or "").partition(": ")
            shown = f"NOT EXERCISED {line.fullname}: {line.reason}"
            yield f"{_SKIPS[kind]} {line.fullname}: {reason}" if kind in _SKIPS else shown
