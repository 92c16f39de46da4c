"""Runs of pytest-benchmark, with or without records of ours, and their cells as rows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.cell import CellRecord, decode_lines
from perfsuite.records.run_file import Benchmark, RunHead, Unusable, invalid_record, read_file
from perfsuite.records.verdict import Verdict, VerdictWord
from perfsuite.report.rows import HistoryPoint, Row, recipe_of, skipped_lines
from perfsuite.system.environment import MOST_SHOWN
from perfsuite.system.json_files import MAX_JSON_BYTES
from perfsuite.system.untrusted import printable, read_untrusted
from perfsuite.system.urls import AnyPath, RemotePath
from perfsuite.units import short_commit

_WHAT_TO_DO = "name a file that pytest-benchmark wrote, such as results/run.json"


@dataclass(frozen=True, kw_only=True)
class Run(RunHead):
    """One session of benchmarks, or the shards of one."""

    machine: str | None
    accepted: frozenset[str]  # names of cells that only a reviewed exception let through
    rows: tuple[Row, ...]  # in the file's order, then cells that were judged and not measured
    num_failed: int = 0  # tests that failed by themselves
    missing: tuple[str, ...] = ()  # a line for each missing cell, and why
    parts: tuple["Run", ...] = ()  # the shards
    gaps: tuple[str, ...] = ()  # a line for each that keeps it from being a whole session
    remarks: tuple[str, ...] = ()  # lines on what its verdicts rest on

    @property
    def unjudged(self) -> tuple[str, ...]:
        """The cells without a verdict, in the run or in a shard of it."""
        rows = (row for part in self.parts or (self,) for row in part.rows)
        return tuple(dict.fromkeys(row.name for row in rows if row.verdict is None))

    @property
    def when(self) -> str:
        """When it was saved, to the minute."""
        return f"{self.saved_at:%Y-%m-%d %H:%M} UTC"

    @property
    def described(self) -> str:
        """Files, time, commit and machine in one line."""
        files = ", ".join(str(part.path) for part in self.parts or (self,))
        commit = None if self.commit is None else f"commit {short_commit(self.commit)}"
        changes = "with uncommitted changes" if self.is_dirty else None
        return ", ".join(filter(None, [files, self.when, commit, changes, self.machine]))


class PlainRecord(msgspec.Struct, frozen=True):
    """What a gate leaves in `extra_info["perfsuite"]` of a benchmark without our fixtures."""

    verdict: Verdict | None = None


def read_runs(paths: Sequence[AnyPath]) -> tuple[Run, ...]:
    """Return the runs of files, the newest last; raises a SettingError for a file without a run."""
    return tuple(sorted((_read_run(path) for path in paths), key=lambda run: run.saved_at))


def rows_of(runs: Sequence[Run]) -> tuple[Row, ...]:
    """Return every cell as its newest run, the last, has it, with what earlier runs measured."""
    newest: dict[str, Run] = {}
    measured: dict[tuple[str, str | None], list[HistoryPoint]] = {}
    for run in runs:
        for row in run.rows:
            if row.step_time_s is not None:
                accepted, time_s = row.name in run.accepted, row.step_time_s
                past = HistoryPoint(run.when, run.commit, time_s, accepted, run.is_dirty)
                measured.setdefault(_environment(run, row), []).append(past)
            # A cell without a time is shown from the newest run alone.
            if row.step_time_s is not None or run is runs[-1]:
                newest[row.name] = run
    shown = []
    for run in reversed(runs):
        for row in (one for one in run.rows if newest.get(one.name) is run):
            history = tuple(measured.get(_environment(run, row), ()))
            shown.append(replace(row, history=history, is_from_older_run=run is not runs[-1]))
    return tuple(shown)


def _environment(run: Run, row: Row) -> tuple[str, str | None]:
    return row.name, (run if row.record is None else row.record).fingerprint


def _read_run(path: AnyPath) -> Run:
    found = read_file(path)
    if isinstance(found, Unusable):
        raise SettingError(f"{found}; {_WHAT_TO_DO}")
    head, file = found
    cpu, stamp = file.machine_info.get("cpu"), file.stamp
    cpu = cpu if isinstance(cpu, dict) else {}
    try:
        measured = [_row(one, cpu.get("count")) for one in file.benchmarks]
        rows = tuple(_with_stamped(measured, {} if stamp is None else stamp.verdicts))
    except ValueError as error:
        raise SettingError(f"{printable(f'{path}: {error}')}; {_WHAT_TO_DO}") from error
    python = file.machine_info.get("python_version")
    there = None if stamp is None else stamp.environments.get(stamp.fingerprint or "")
    gpus = Counter(gpu.partition(", ")[0] for gpu in (there.accelerators if there else []))
    said = [
        cpu.get("brand_raw"),
        *(f"{number} x {name}" for name, number in gpus.items()),
        f"driver {there.driver}" if there and gpus else None,
        file.machine_info.get("system"),
        f"Python {python}" if isinstance(python, str) else None,
    ]
    exceptions = {} if stamp is None else stamp.exceptions
    accepted = dict.fromkeys(text for texts in exceptions.values() for text in texts)
    return Run(
        **vars(head),
        machine=printable(", ".join(it for it in said if isinstance(it, str))[:MOST_SHOWN]) or None,
        accepted=frozenset() if stamp is None else frozenset(stamp.accepted),
        rows=rows,
        num_failed=0 if stamp is None else stamp.num_failed,
        remarks=tuple(printable(f"accepted: {text}") for text in accepted),
    )


def _row(benchmark: Benchmark, num_cores: Any) -> Row:
    plain = benchmark.record
    record = recipe = None
    try:
        if isinstance(plain, dict) and "recipe" in plain:
            record = msgspec.convert(plain, CellRecord)
            recipe, verdict = recipe_of(record), record.verdict
        else:
            verdict = msgspec.convert(plain, PlainRecord).verdict
    except (msgspec.ValidationError, RecipeError, TypeError) as error:
        raise invalid_record(benchmark.fullname, error) from error
    return Row(
        name=printable(benchmark.fullname),
        step_time_s=benchmark.median_s,
        rounds_s=benchmark.stats.data,
        record=record,
        recipe=recipe,
        verdict=verdict,
        num_cores=num_cores if type(num_cores) is int and num_cores > 0 else None,
    )


def _with_stamped(rows: Sequence[Row], words: Mapping[str, VerdictWord]) -> Iterator[Row]:
    judged = {printable(name): Verdict(word=word, by="stamp") for name, word in words.items()}
    for row in rows:
        stamped = judged.pop(row.name, None)
        if stamped is not None and row.verdict is not None and row.verdict.word != stamped.word:
            both = f"{row.verdict.word} and {stamped.word}"
            raise ValueError(f"holds two verdicts of the cell {row.name}: {both}")
        yield replace(row, verdict=row.verdict or stamped)
    for name, stamped in judged.items():
        yield Row(name=name, verdict=stamped)


def with_reasons(run: Run) -> Run:
    """Return the run with the reasons that lie beside its file; as it is where none do."""
    if isinstance(run.path, RemotePath):  # storages hold runs alone
        return run
    try:
        data = read_untrusted(run.path.with_name("cells.jsonl"), max_bytes=MAX_JSON_BYTES)
    except (OSError, ValueError):
        return run
    lines = {printable(line.fullname): line for line in decode_lines(data)}
    times_s = {name: line.step_times_s for name, line in lines.items()}
    ours = [row for row in run.rows if row.record is not None]
    if not ours or any(times_s.get(row.name) != row.rounds_s for row in ours):
        return run
    notes = {name: it.reason and printable(it.reason.split("\n")[0]) for name, it in lines.items()}
    rows = tuple(replace(row, note=notes.get(row.name, row.note)) for row in run.rows)
    failed = (name for name, it in lines.items() if it.outcome == "failed" and not it.perfsuite)
    missing = [*skipped_lines(lines.values())]
    missing += [f"FAILED {name}: {notes[name] or 'no reason is known'}" for name in failed]
    return replace(run, rows=rows, missing=tuple(map(printable, missing)))
