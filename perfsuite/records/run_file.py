"""A stored run: one of the files that pytest-benchmark saves, read as the untrusted input it is.

Whatever the file holds, reading it ends in a valid `StoredRun` or in an `Unusable` with the reason.
Must not know whether the run may serve as a baseline, nor how it is compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from perfsuite.records.cell import Counts, Memory, Operator, StageTimes, samples_of_step
from perfsuite.records.shard import ShardStamp
from perfsuite.records.verdict import VerdictWord
from perfsuite.stats.intervals import median
from perfsuite.system.json_files import read_json_as, read_until
from perfsuite.system.untrusted import MOST, Amount, Label, in_utc, printable, why_unreadable
from perfsuite.system.urls import AnyPath

# A server takes some 50 ms to answer, whoever else waits for it.
_NUM_FETCHED = 8
# Nothing else goes to git as a revision: a name that begins with a dash would be an option.
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
STAMP_KEY: Final = "perfsuite"
# Where a run's stamp and its benchmarks begin, as pytest-benchmark indents them. No other place of
# such a file looks alike: a string in JSON holds no newline.
_STAMP = f'\n    "{STAMP_KEY}": {{'.encode()
_BENCHMARKS = b'\n    "benchmarks": ['


@dataclass(frozen=True, kw_only=True)
class Unusable:
    """A stored run, or a whole storage, that no comparison uses, and why."""

    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


@dataclass(frozen=True, kw_only=True)
class StoredCell:
    """One benchmark of a stored run; a suite without perfsuite's fixtures stores times alone.

    Attributes:
        median_s: Median of the rounds, in seconds per iteration; finite and above 0.
        fingerprint: Of the environment that the ranks found, which differs between cells.
        operators: The costliest operators, None where none were kept.
        num_samples: Of a step; None of what is no step, or was not kept.
    """

    median_s: float
    params: dict[str, Any]
    num_samples: int | None = None
    fingerprint: str | None = None
    stages_s: StageTimes | None = None
    counts: Counts | None = None
    memory: Memory | None = None
    operators: tuple[Operator, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """What a stored run says of itself.

    Attributes:
        saved_at: In UTC.
        commit: Hexadecimal digits, None where the file names no commit.
        is_dirty: Whether the tree had uncommitted changes.
        stamp: None where perfsuite did not save the run.
    """

    path: AnyPath
    saved_at: datetime
    commit: str | None
    is_dirty: bool
    stamp: RunStamp | None

    @property
    def fingerprint(self) -> str | None:
        """Of the environment of the session, None where it is not known."""
        return None if self.stamp is None else self.stamp.fingerprint

    @property
    def probe_s(self) -> dict[str, float] | None:
        """Seconds of each host probe, None where none was run."""
        return None if self.stamp is None else self.stamp.probe_s


@dataclass(frozen=True, kw_only=True)
class StoredRun(RunHead):
    """A well-formed stored run, which need not be one to compare with.

    Attributes:
        cells: By full name, the node id.
    """

    cells: dict[str, StoredCell]


class _Record(msgspec.Struct, frozen=True):
    """What is read of `extra_info["perfsuite"]`; a plain benchmark's holds the verdict alone."""

    schema: Literal[1] = 1
    fingerprint: Label | None = None
    samples_per_s: Amount | None = None
    stages_s: StageTimes | None = None
    counts: Counts | None = None
    memory: Memory | None = None
    operators: tuple[Operator, ...] | None = None


class _ExtraInfo(msgspec.Struct, frozen=True):
    perfsuite: _Record = _Record()


class _Stats(msgspec.Struct, frozen=True):
    median: float
    data: tuple[float, ...] = ()


class _Benchmark(msgspec.Struct, frozen=True):
    fullname: str
    stats: _Stats
    params: dict[str, Any] | None = None
    extra_info: _ExtraInfo = _ExtraInfo()


class _Commit(msgspec.Struct, frozen=True):
    id: str = ""
    dirty: bool = False


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    datetime: datetime
    commit_info: _Commit
    stamp: RunStamp | None = msgspec.field(default=None, name=STAMP_KEY)


class _Run(_Head, frozen=True, kw_only=True):
    benchmarks: tuple[_Benchmark, ...]


def read_run(path: AnyPath) -> StoredRun | Unusable:
    """Return the run that a file holds, or why it holds none."""
    try:
        run = read_json_as(path, _Run)
        return StoredRun(**_facts(path, run), cells=_cells_of(run.benchmarks))
    except (msgspec.ValidationError, OSError, ValueError) as error:
        return _unusable(path, error)


def read_head(path: AnyPath) -> RunHead | Unusable:
    """Return what a file says of its run, or why it holds none.

    Enough to refuse a run: where the stamp comes before the benchmarks, these are not read. To use
    one it has to be read whole, since only then anybody knows that it is well-formed.
    """
    try:
        head = _read_before(path, _BENCHMARKS)
        if head is None or head.stamp is None:
            head = read_json_as(path, _Head)
        return RunHead(**_facts(path, head))
    except (msgspec.ValidationError, OSError, ValueError) as error:
        return _unusable(path, error)


def read_moment(path: AnyPath) -> datetime | Unusable:
    """Return when a run was saved, or why its file holds none; of most files the first lines do.

    Enough to tell which of a thousand runs are the newest.
    """
    try:
        head = _read_before(path, _STAMP) or read_json_as(path, _Head)
        return in_utc(head.datetime)
    except (msgspec.ValidationError, OSError, ValueError) as error:
        return _unusable(path, error)


def _read_before(path: AnyPath, mark: bytes) -> _Head | None:
    """What stands before a mark; None where there is none, or nothing valid before it."""
    beginning = read_until(path, mark)
    if beginning is None:
        return None
    try:
        return msgspec.json.decode(beginning.removesuffix(b",") + b"}", type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _facts(path: AnyPath, head: _Head) -> dict[str, Any]:
    commit = head.commit_info
    return {
        "path": path,
        "saved_at": in_utc(head.datetime),
        "commit": commit.id if _COMMIT.fullmatch(commit.id) else None,
        "is_dirty": commit.dirty,
        "stamp": head.stamp,
    }


def _unusable(path: AnyPath, error: Exception) -> Unusable:
    reason = why_unreadable(error)
    if isinstance(error, msgspec.ValidationError):
        reason = f"is no stored run of pytest-benchmark: {reason}"
    return Unusable(path=path, reason=printable(reason))


def read_moments(paths: Sequence[AnyPath]) -> list[datetime | Unusable]:
    """Return when each run was saved, or why a file holds none; several are asked at a time."""
    with ThreadPoolExecutor(_NUM_FETCHED) as pool:
        return list(pool.map(read_moment, paths))


def _cells_of(benchmarks: Iterable[_Benchmark]) -> dict[str, StoredCell]:
    cells: dict[str, StoredCell] = {}
    for benchmark in benchmarks:
        name = benchmark.fullname
        _require_text(name)
        if name in cells:
            raise ValueError(f"holds the cell {name} twice")
        stats = benchmark.stats
        for seconds in (stats.median, *stats.data):
            if not 0 < seconds <= MOST:
                raise ValueError(f"holds a time of {seconds!r} s of the cell {name}")
        record = benchmark.extra_info.perfsuite
        median_s = median(stats.data or (stats.median,))
        for operator in record.operators or ():
            _require_text(operator.name)
        cells[name] = StoredCell(
            median_s=median_s,
            params=benchmark.params or {},
            num_samples=samples_of_step(record.samples_per_s, median_s),
            fingerprint=record.fingerprint,
            stages_s=record.stages_s,
            counts=record.counts,
            memory=record.memory,
            operators=record.operators,
        )
    if not cells:
        raise ValueError("holds no benchmark")
    return cells


def _require_text(name: str) -> None:
    # JSON can hold half of a surrogate pair, which no terminal and no file takes.
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds a name that is no text: {name!r}") from error


class RunStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The top-level key "perfsuite" of a saved run.

    Attributes:
        fingerprint: Of the environment that the session ran in; None where it is not known.
        probe_s: Seconds of each host probe at the time, by name; None where none was run.
        num_failed: Tests of the session that failed, benchmarks or not.
        is_pull_request: Whether it ran for a change that nobody has merged yet.
        verdicts: What the gate decided, by the full name of the cell; of the cells without a time
            too. In a stamp from before these were kept it has the others alone.
        accepted: Full names of the cells that only a reviewed exception let through. Their history
            begins anew here, so a cell whose exception was not needed must not be among them.
        durations_s: Of the whole test of each benchmark, set-up included: by them the next session
            is cut into shards. Empty in a stamp from before they were kept.
        shard: Which part of a session it is; None of a whole one.
    """

    schema: Literal[1] = 1
    fingerprint: Label | None
    probe_s: dict[str, float] | None
    num_failed: Annotated[int, msgspec.Meta(ge=0)]
    is_pull_request: bool
    verdicts: dict[str, VerdictWord]
    accepted: tuple[str, ...]
    durations_s: dict[str, Amount] = {}
    shard: ShardStamp | None = None

    def __post_init__(self) -> None:
        for name, seconds in (self.probe_s or {}).items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise ValueError(f"the host probe {name!r} took {seconds!r} s")
