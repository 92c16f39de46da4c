"""A stored run: one of the files that pytest-benchmark saves, read as the untrusted input it is.

Whatever the file holds, reading it ends in a valid `StoredRun` or in an `Unusable` with the reason.
Must not know whether the run may serve as a baseline, nor how it is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from perfsuite.gate.stamp import STAMP_KEY, RunStamp
from perfsuite.json_file import read_json
from perfsuite.records import MOST, Counts, Label, Memory, Operator, StageTimes
from perfsuite.remote import AnyPath
from perfsuite.stats import median
from perfsuite.untrusted import in_utc, printable, why_unreadable

# A server takes some 50 ms to answer, whoever else waits for it.
_NUM_FETCHED = 8
# Nothing else goes to git as a revision: a name that begins with a dash would be an option.
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


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
    """

    median_s: float
    params: dict[str, Any]
    fingerprint: str | None = None
    stages_s: StageTimes | None = None
    counts: Counts | None = None
    memory: Memory | None = None
    operators: tuple[Operator, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A well-formed stored run, which need not be one to compare with.

    Attributes:
        saved_at: In UTC.
        commit: Hexadecimal digits, None where the file names no commit.
        is_dirty: Whether the tree had uncommitted changes.
        stamp: None where perfsuite did not save the run.
        cells: By full name, the node id.
    """

    path: AnyPath
    saved_at: datetime
    commit: str | None
    is_dirty: bool
    stamp: RunStamp | None
    cells: dict[str, StoredCell]

    @property
    def fingerprint(self) -> str | None:
        """Of the environment of the session, None where it is not known."""
        return None if self.stamp is None else self.stamp.fingerprint

    @property
    def probe_s(self) -> dict[str, float] | None:
        """Seconds of each host probe, None where none was run."""
        return None if self.stamp is None else self.stamp.probe_s


class _Record(msgspec.Struct, frozen=True):
    """What is read of `extra_info["perfsuite"]`; a plain benchmark's holds the verdict alone."""

    schema: Literal[1] = 1
    fingerprint: Label | None = None
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


class _Run(msgspec.Struct, frozen=True):
    datetime: datetime
    commit_info: _Commit
    benchmarks: tuple[_Benchmark, ...]
    stamp: RunStamp | None = msgspec.field(default=None, name=STAMP_KEY)


def read_run(path: AnyPath) -> StoredRun | Unusable:
    """Return the run that a file holds, or why it holds none."""
    try:
        run = msgspec.convert(read_json(path), _Run)
        saved_at = in_utc(run.datetime)
        cells = _cells_of(run.benchmarks)
    except msgspec.ValidationError as error:
        reason = f"is no stored run of pytest-benchmark: {error}"
        return Unusable(path=path, reason=printable(reason))
    except (OSError, ValueError) as error:
        return Unusable(path=path, reason=printable(why_unreadable(error)))
    return StoredRun(
        path=path,
        saved_at=saved_at,
        commit=run.commit_info.id if _COMMIT.fullmatch(run.commit_info.id) else None,
        is_dirty=run.commit_info.dirty,
        stamp=run.stamp,
        cells=cells,
    )


def read_runs(paths: Sequence[AnyPath]) -> list[StoredRun | Unusable]:
    """Return what each file holds, or why it holds no run; several are fetched at a time."""
    with ThreadPoolExecutor(_NUM_FETCHED) as pool:
        return list(pool.map(read_run, paths))


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
        for operator in record.operators or ():
            _require_text(operator.name)
        cells[name] = StoredCell(
            median_s=median(stats.data or (stats.median,)),
            params=benchmark.params or {},
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
