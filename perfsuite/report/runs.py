"""Runs read from pytest-benchmark's JSON, ours or anybody's, and their cells as rows.

A file is untrusted: it ends in a valid `Run`, or in one sentence that says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.cell import CellLine, CellRecord, decode_line
from perfsuite.records.recipe import Recipe
from perfsuite.records.shard import ShardStamp
from perfsuite.records.verdict import Verdict, VerdictWord
from perfsuite.report.rows import HistoryPoint, Row, not_exercised_lines, recipe_of
from perfsuite.stats import intervals
from perfsuite.system.json_files import MAX_JSON_BYTES, read_json_as
from perfsuite.system.untrusted import (
    MOST,
    Count,
    Label,
    in_utc,
    printable,
    read_untrusted,
    why_unreadable,
)
from perfsuite.system.urls import AnyPath, RemotePath
from perfsuite.units import short_commit

# Of SHA-256, the longest that git has; a strange file may hold anything.
_MOST_DIGITS = 64
_WHAT_TO_DO = "name a file that pytest-benchmark wrote, such as results/run.json"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One session of benchmarks.

    Attributes:
        path: The file that holds it.
        saved_at: In UTC.
        commit: All of its digits, None where the file names none.
        is_dirty: Whether the tree had uncommitted changes.
        machine: What it ran on, for people; None where the file does not say.
        accepted: Names of the cells that only a reviewed exception let through.
        rows: Its cells, in the file's order, then those that were judged and not measured.
        num_failed: Tests that failed by themselves, cells or not.
        missing: Which cells measured nothing and why, one line each, as far as that is known.
        fingerprint: Of the environment that it was made in, None where the file does not say.
        shard: Which part of a session it is, None of a whole one.
        parts: The shards that were merged into it.
        gaps: What keeps it from being a whole session, one line each.
        remarks: What else is to be said of how it was put together.
    """

    path: AnyPath
    saved_at: datetime
    commit: str | None
    is_dirty: bool
    machine: str | None
    accepted: frozenset[str]
    rows: tuple[Row, ...]
    num_failed: int = 0
    missing: tuple[str, ...] = ()
    fingerprint: str | None = None
    shard: ShardStamp | None = None
    parts: tuple[Run, ...] = ()
    gaps: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[Row, ...]:
        """The cells with a time."""
        return tuple(row for row in self.rows if row.step_time_s is not None)

    @property
    def when(self) -> str:
        """The minute in which it was saved."""
        return f"{self.saved_at:%Y-%m-%d %H:%M} UTC"

    @property
    def described(self) -> str:
        """Files, time, commit and machine in one line."""
        files = ", ".join(str(part.path) for part in self.parts or (self,))
        commit = None if self.commit is None else f"commit {short_commit(self.commit)}"
        changes = "with uncommitted changes" if self.is_dirty else None
        return ", ".join(filter(None, [files, self.when, commit, changes, self.machine]))


class _Stats(msgspec.Struct, frozen=True):
    median: float
    data: tuple[float, ...] = ()


class _Benchmark(msgspec.Struct, frozen=True):
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = {}


class _Commit(msgspec.Struct, frozen=True):
    id: str = ""
    dirty: bool = False


class _Stamp(msgspec.Struct, frozen=True):
    num_failed: Count = 0
    verdicts: dict[str, VerdictWord] = {}
    accepted: tuple[str, ...] = ()
    fingerprint: Label | None = None
    shard: ShardStamp | None = None


class _File(msgspec.Struct, frozen=True):
    datetime: datetime
    commit_info: _Commit
    benchmarks: tuple[_Benchmark, ...]
    machine_info: dict[str, Any] = {}
    stamp: _Stamp = msgspec.field(default=_Stamp(), name="perfsuite")


class _OfAnybody(msgspec.Struct, frozen=True):
    """What a gate leaves in `extra_info["perfsuite"]` of a benchmark that is not ours."""

    verdict: Verdict | None = None


def read_runs(paths: Sequence[AnyPath]) -> tuple[Run, ...]:
    """Return the runs that files hold, the newest last.

    Raises:
        SettingError: A file holds no run, or one that cannot be; names the file and the reason.
    """
    return tuple(sorted((_read_run(path) for path in paths), key=lambda run: run.saved_at))


def rows_of(runs: Sequence[Run]) -> tuple[Row, ...]:
    """Return every cell as its newest run has it, with what earlier runs measured of it.

    A cell without a time is told by the newest run alone: there is nothing else to show of it.

    Args:
        runs: The newest last.
    """
    newest: dict[str, Run] = {}
    measured: dict[tuple[str, str | None], list[HistoryPoint]] = {}
    for run in runs:
        for row in run.rows:
            if row.step_time_s is not None:
                past = _past(run, row, row.step_time_s)
                measured.setdefault(_environment(row), []).append(past)
            if row.step_time_s is not None or run is runs[-1]:
                newest[row.name] = run
    return tuple(
        dataclasses.replace(
            row,
            history=tuple(measured.get(_environment(row), ())),
            is_from_older_run=run is not runs[-1],
        )
        for run in reversed(runs)
        for row in run.rows
        if newest.get(row.name) is run
    )


def _environment(row: Row) -> tuple[str, str | None]:
    """What two measurements must share to be points of one history."""
    return row.name, None if row.record is None else row.record.fingerprint


def _past(run: Run, row: Row, step_time_s: float) -> HistoryPoint:
    return HistoryPoint(
        when=run.when,
        commit=run.commit,
        step_time_s=step_time_s,
        is_accepted=row.name in run.accepted,
        is_dirty=run.is_dirty,
    )


def _read_run(path: AnyPath) -> Run:
    try:
        file = read_json_as(path, _File)
        saved_at = in_utc(file.datetime)
        measured = tuple(_rows(file.benchmarks, _num_cores(file.machine_info)))
        rows = tuple(_with_stamped(measured, file.stamp.verdicts))
    except msgspec.ValidationError as error:
        reason = printable(f"{path} is no run of pytest-benchmark: {error}")
        raise SettingError(f"{reason}; {_WHAT_TO_DO}") from error
    except (OSError, ValueError) as error:
        reason = printable(f"{path}: {why_unreadable(error)}")
        raise SettingError(f"{reason}; {_WHAT_TO_DO}") from error
    return Run(
        path=path,
        saved_at=saved_at,
        commit=printable(file.commit_info.id[:_MOST_DIGITS]) or None,
        is_dirty=file.commit_info.dirty,
        machine=_machine(file.machine_info),
        accepted=frozenset(file.stamp.accepted),
        rows=rows,
        num_failed=file.stamp.num_failed,
        fingerprint=file.stamp.fingerprint,
        shard=file.stamp.shard,
    )


def _rows(benchmarks: Sequence[_Benchmark], num_cores: int | None) -> Iterator[Row]:
    seen: set[str] = set()
    for benchmark in benchmarks:
        name = benchmark.fullname
        if name in seen:
            raise ValueError(f"holds the cell {name!r} twice")
        seen.add(name)
        rounds_s = benchmark.stats.data
        for seconds in (benchmark.stats.median, *rounds_s):
            if not 0 <= seconds <= MOST:
                raise ValueError(f"holds a time of {seconds!r} s of the cell {name!r}")
        record, recipe, verdict = _of_perfsuite(name, benchmark.extra_info.get("perfsuite"))
        yield Row(
            name=printable(name),
            step_time_s=intervals.median(rounds_s or (benchmark.stats.median,)),
            rounds_s=rounds_s,
            record=record,
            recipe=recipe,
            verdict=verdict,
            num_cores=num_cores,
        )
    if not seen:
        raise ValueError("holds no benchmark")


def _with_stamped(rows: Sequence[Row], words: Mapping[str, str]) -> Iterator[Row]:
    """Yield what was measured, and then what the stamp alone says was judged."""
    judged = {printable(name): word for name, word in words.items()}
    for row in rows:
        word = judged.pop(row.name, None)
        if word is not None and row.verdict is None:
            row = dataclasses.replace(row, verdict=_stamped(word))
        elif word is not None and row.verdict is not None and row.verdict.word != word:
            raise ValueError(
                f"holds two verdicts of the cell {row.name!r}: {row.verdict.word} and {word}"
            )
        yield row
    for name, word in judged.items():
        yield Row(name=name, verdict=_stamped(word))


def _stamped(word: str) -> Verdict:
    return Verdict(word=word, by="stamp", ratio=None, interval=None, pairs=None, detectable=None)


def _of_perfsuite(
    name: str, info: object
) -> tuple[CellRecord | None, Recipe | None, Verdict | None]:
    if not isinstance(info, dict) or "recipe" not in info:
        return None, None, msgspec.convert(info or {}, _OfAnybody).verdict
    try:
        record = msgspec.convert(info, CellRecord)
        return record, recipe_of(record), record.verdict
    except (msgspec.ValidationError, RecipeError, TypeError) as error:
        raise ValueError(f"holds a record that cannot be, of the cell {name!r}: {error}") from error


def _num_cores(info: dict[str, Any]) -> int | None:
    cpu = info.get("cpu")
    count = cpu.get("count") if isinstance(cpu, dict) else None
    return count if type(count) is int and count > 0 else None


def _machine(info: dict[str, Any]) -> str | None:
    cpu, python = info.get("cpu"), info.get("python_version")
    parts = [
        cpu.get("brand_raw") if isinstance(cpu, dict) else None,
        info.get("system"),
        f"Python {python}" if isinstance(python, str) else None,
    ]
    return ", ".join(part for part in parts if isinstance(part, str)) or None


def with_reasons(run: Run) -> Run:
    """Return the run with the reasons that lie beside its file; as it is where none do."""
    if isinstance(run.path, RemotePath):  # storages hold runs alone
        return run
    lines = {printable(line.fullname): line for line in _lines(run.path.with_name("cells.jsonl"))}
    ours = [row for row in run.rows if row.record is not None]
    if not ours or any(
        row.name not in lines or lines[row.name].step_times_s != row.rounds_s for row in ours
    ):
        return run
    rows = tuple(
        dataclasses.replace(row, note=_reason(lines[row.name])) if row.name in lines else row
        for row in run.rows
    )
    missing = [*not_exercised_lines(list(lines.values())), *_failed(lines)]
    return dataclasses.replace(run, rows=rows, missing=tuple(map(printable, missing)))


def _failed(lines: dict[str, CellLine]) -> Iterator[str]:
    for name, line in lines.items():
        if line.outcome == "failed" and line.perfsuite is None:
            yield f"FAILED {name}: {_reason(line) or 'no reason is known'}"


def _reason(line: CellLine) -> str | None:
    return None if line.reason is None else printable(line.reason.partition("\n")[0])


def _lines(path: Path) -> Iterator[CellLine]:
    try:
        data = read_untrusted(path, max_bytes=MAX_JSON_BYTES)
    except (OSError, ValueError):
        return
    for text in data.splitlines():
        try:
            yield decode_line(text)
        # A killed session can leave half of its last line.
        except ValueError:
            continue
