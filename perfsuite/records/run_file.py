"""A stored run: a JSON file of pytest-benchmark, read as the untrusted input that it is.

Gate and report both read it here. A file ends in a valid value, or in an `Unusable` that says why.
"""

import functools
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from perfsuite.records.cell import Counts, Memory, Operator, StageTimes, samples_of_step
from perfsuite.records.shard import ShardStamp
from perfsuite.records.verdict import VerdictWord
from perfsuite.system.environment import Environment
from perfsuite.system.json_files import read_json_as, read_until
from perfsuite.system.untrusted import MOST, Amount, Label, in_utc, printable, why_unreadable
from perfsuite.system.urls import AnyPath

_T = TypeVar("_T")

# Nothing else goes to git as a revision: a name that begins with a dash would be an option.
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
STAMP_KEY = "perfsuite"
# Where a run's stamp and its benchmarks begin, as pytest-benchmark indents them and `put_stamp`
# orders them. Nothing else in such a file looks alike: a string in JSON holds no newline.
_STAMP = f'\n    "{STAMP_KEY}": {{'.encode()
_BENCHMARKS = b'\n    "benchmarks": ['


class Unusable(NamedTuple):
    """A stored run, or a whole storage, that no comparison uses, and why."""

    path: AnyPath
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


class RunStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The top-level key "perfsuite" of a saved run.

    Attributes:
        probe_s: Seconds of each probe of the host, and of a rank's GPU, at the time, by name; None
            where none was run.
        num_failed: Tests of the session that failed, benchmarks or not.
        is_pull_request: Whether it ran for a change that is not merged yet.
        verdicts: The gate's decision on each cell, by full name, cells without a time included.
        accepted: Full names of the cells that only a reviewed exception let through. Their history
            begins anew here, so a cell whose exception was not needed must not be listed.
        exceptions: The reviewed exceptions that the verdict of a cell rests on, in words.
        durations_s: Of the whole test of each benchmark, set-up included; the next session is cut
            into shards by them.
        shard: The part of a session that this is; None for a whole one.
        digests: Of each cell's benchmark files, recipe and workload: where another run has another
            digest, it measured something else under the same name.
    """

    schema: Literal[1] = 1
    fingerprint: Label | None
    probe_s: dict[str, Annotated[float, msgspec.Meta(gt=0, le=float(MOST))]] | None
    num_failed: Annotated[int, msgspec.Meta(ge=0)]
    is_pull_request: bool
    verdicts: dict[str, VerdictWord]
    accepted: tuple[str, ...]
    exceptions: dict[str, tuple[str, ...]] = {}
    durations_s: dict[str, Amount] = {}
    shard: ShardStamp | None = None
    digests: dict[str, Label] = {}
    environments: dict[Label, Environment] = {}  # by fingerprint: the session's, its ranks'


class _Stats(msgspec.Struct, frozen=True):
    median: float
    data: tuple[float, ...] = ()


class Benchmark(msgspec.Struct, frozen=True):
    """One benchmark of a file; its `extra_info` may hold anything."""

    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = {}

    @property
    def median_s(self) -> float:
        """Median of the rounds, in seconds per iteration; finite and above 0."""
        return statistics.median(self.stats.data or (self.stats.median,))

    @property
    def record(self) -> Any:
        """What the file holds under "perfsuite", unchecked: a plain benchmark's has no recipe."""
        return self.extra_info.get(STAMP_KEY, {})


class _Commit(msgspec.Struct, frozen=True):
    id: str = ""
    dirty: bool = False


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    datetime: datetime
    commit_info: _Commit
    stamp: RunStamp | None = msgspec.field(default=None, name=STAMP_KEY)


class RunFile(_Head, frozen=True, kw_only=True):
    """A well-formed file: it has benchmarks, no cell twice, and possible times."""

    benchmarks: tuple[Benchmark, ...]
    machine_info: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """What a stored run says about itself: when, in UTC, and at which commit, if it names one."""

    path: AnyPath
    saved_at: datetime
    commit: str | None
    is_dirty: bool
    stamp: RunStamp | None  # None where perfsuite did not save it

    @property
    def fingerprint(self) -> str | None:
        """The session's environment, None where it is not known."""
        return None if self.stamp is None else self.stamp.fingerprint

    @property
    def probe_s(self) -> dict[str, float] | None:
        """Seconds of each probe, None where none was run."""
        return None if self.stamp is None else self.stamp.probe_s

    @property
    def shard(self) -> ShardStamp | None:
        """The part of a session that it is, None for a whole one."""
        return None if self.stamp is None else self.stamp.shard


class StoredCell(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark of a stored run, with the part of its record that comparisons use."""

    median_s: float  # as in `Benchmark`, and all that a suite without perfsuite's fixtures stores
    schema: Literal[1] = 1
    fingerprint: Label | None = None
    environment: Environment | None = None  # where it is known
    samples_per_s: Amount | None = None
    stages_s: StageTimes | None = None
    counts: Counts | None = None
    memory: Memory | None = None
    operators: tuple[Operator, ...] | None = None

    @property
    def num_samples(self) -> int | None:
        """Samples of a step; None where the cell runs no steps, or they were not kept."""
        return samples_of_step(self.samples_per_s, self.median_s)


@dataclass(frozen=True, kw_only=True)
class StoredRun(RunHead):
    """A well-formed stored run, which may still be unfit to compare with; cells by node id."""

    cells: dict[str, StoredCell]

    @property
    def part(self) -> Fraction:
        """What it is of a session: a quarter where it is one of four shards."""
        return Fraction(1, self.shard.num_shards if self.shard else 1)


def _or_unusable(read: Callable[[AnyPath], _T]) -> Callable[[AnyPath], _T | Unusable]:
    """Return the reader with the reason why a file holds none in place of an error."""

    @functools.wraps(read)
    def read_or_refuse(path: AnyPath) -> _T | Unusable:
        try:
            return read(path)
        except (OSError, ValueError) as error:
            reason = why_unreadable(error)
            if isinstance(error, msgspec.ValidationError):
                reason = f"is no run of pytest-benchmark: {reason}"
            return Unusable(path=path, reason=printable(reason))

    return read_or_refuse


@_or_unusable
def read_file(path: AnyPath) -> tuple[RunHead, RunFile]:
    """Return what a file of pytest-benchmark holds, or why it holds no run."""
    file = _read_whole(path)
    return RunHead(**_facts(path, file)), file


@_or_unusable
def read_run(path: AnyPath) -> StoredRun:
    """Return the run that a file holds, or why it holds none."""
    file = _read_whole(path)
    known = {} if file.stamp is None else file.stamp.environments
    cells = {benchmark.fullname: _stored_cell(benchmark, known) for benchmark in file.benchmarks}
    return StoredRun(**_facts(path, file), cells=cells)


@_or_unusable
def read_head(path: AnyPath) -> RunHead:
    """Return what a file says about its run, or why it holds none: enough to refuse a run."""
    # A stamp mostly precedes the benchmarks, which are not read then. A run that is used must be
    # read whole, because only then is it known to be well-formed.
    if (head := _read_before(path, _BENCHMARKS)) is None or head.stamp is None:
        head = read_json_as(path, _Head)
    return RunHead(**_facts(path, head))


@_or_unusable
def read_moment(path: AnyPath) -> datetime:
    """Return when a run was saved, or why its file holds none."""
    # Of most files only the first lines are read, to find the newest of a thousand.
    return in_utc((_read_before(path, _STAMP) or read_json_as(path, _Head)).datetime)


def invalid_record(cell: str, error: Exception) -> ValueError:
    """Return the error of a file whose record of a cell is invalid."""
    newer = ", for a newer perfsuite wrote it: update this one" * ("`$.schema`" in str(error))
    return ValueError(f"holds an invalid record of the cell {cell}: {error}{newer}")


def _read_before(path: AnyPath, mark: bytes) -> _Head | None:
    """Return what precedes a mark; None where there is no mark, or nothing valid before it."""
    if (beginning := read_until(path, mark)) is None:
        return None
    try:
        return msgspec.json.decode(beginning.removesuffix(b",") + b"}", type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _facts(path: AnyPath, head: _Head) -> dict[str, Any]:
    commit = head.commit_info
    facts = {"path": path, "saved_at": in_utc(head.datetime), "stamp": head.stamp}
    known = commit.id if _COMMIT.fullmatch(commit.id) else None
    return facts | {"commit": known, "is_dirty": commit.dirty}


def _read_whole(path: AnyPath) -> RunFile:
    file = read_json_as(path, RunFile)
    if not file.benchmarks:
        raise ValueError("holds no benchmark")
    seen: set[str] = set()
    for benchmark in file.benchmarks:
        if (name := benchmark.fullname) in seen:
            raise ValueError(f"holds the cell {name} twice")
        seen.add(name)
        for seconds in (benchmark.stats.median, *benchmark.stats.data):
            if not 0 < seconds <= MOST:
                raise ValueError(f"holds a time of {seconds!r} s of the cell {name}")
    return file


def _stored_cell(benchmark: Benchmark, known: Mapping[str, Environment]) -> StoredCell:
    record = benchmark.record
    if isinstance(record, dict):
        record = record | {"median_s": benchmark.median_s, "environment": None}
    try:
        cell = msgspec.convert(record, StoredCell)
    except msgspec.ValidationError as error:
        raise invalid_record(benchmark.fullname, error) from error
    for name in (benchmark.fullname, *(operator.name for operator in cell.operators or ())):
        try:  # JSON can hold half of a surrogate pair, which cannot be printed or written
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"holds a name that is no text: {name!r}") from error
    return msgspec.structs.replace(cell, environment=known.get(cell.fingerprint or ""))
