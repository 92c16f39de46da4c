"""What pytest-benchmark stores of a session: whole files, stamped, and none over another.

Its JSON and its saves stay its own; only how they reach the disk is replaced, and whether they may
serve as a baseline is added. Must not know how cells are measured or judged.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import pytest
from pytest_benchmark.storage.file import FileStorage

from perfsuite.errors import DeviceError, ExitCode, SettingError, StorageError, WriteError
from perfsuite.gate.baselines.select import find_runs, save_run
from perfsuite.records.run_file import STAMP_KEY, RunStamp, Unusable, read_run
from perfsuite.records.shard import ShardStamp
from perfsuite.records.verdict import VerdictWord
from perfsuite.system.environment import describe_host, is_pull_request
from perfsuite.system.files import write_atomically
from perfsuite.system.host_probe import probe_host
from perfsuite.system.json_files import read_json
from perfsuite.system.urls import AnyPath, RemotePath, locate

_PLUGIN_NAME = "pytest-benchmark"
# A file that could not be written ends the session in 12, unless it ends in something graver:
# 11 is an inconclusive cell, 5 that no test was found.
_LESSER_EXITS: Final = (ExitCode.OK, ExitCode.INCONCLUSIVE, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True, kw_only=True)
class WrittenRun:
    """The run.json of a session, and what its verdicts are drawn against."""

    path: Path
    tolerance: float
    limit: float


# Where a session that wrote its run.json says so, for plugins that come after.
WRITTEN_RUN = pytest.StashKey[WrittenRun]()


class RunSaver:
    """The plugin of one session that stamps its run and makes each file of it whole or absent.

    Attributes:
        write_errors: The files that could not be written, and why; told at the end.
        shard: Which part of a session this is; None of a whole one.
    """

    def __init__(self, config: pytest.Config, environ: Mapping[str, str]) -> None:
        """Look at the machine before any test can change what this process sees of it.

        Args:
            config: The session's.
            environ: The environment variables.
        """
        self.write_errors: list[WriteError] = []
        self.shard: ShardStamp | None = None
        self._config = config
        self._environ = dict(environ)
        self._num_cores = len(os.sched_getaffinity(0))
        self._failed: set[str] = set()
        self._failed_by_verdict: set[str] = set()
        self._verdicts: dict[str, VerdictWord] = {}
        self._accepted: set[str] = set()
        self._durations_s: defaultdict[str, float] = defaultdict(float)

    def add_verdict(
        self,
        fullname: str,
        word: VerdictWord,
        *,
        is_accepted: bool = False,
        fails_test: bool = False,
    ) -> None:
        """Keep what the gate decided of a cell, before the report of its test is logged.

        Args:
            fullname: The cell's node id, whether or not the session has such a test.
            word: The verdict.
            is_accepted: Only a reviewed exception let the cell through.
            fails_test: The cell's own test passed, and the verdict alone fails it.
        """
        self._verdicts[fullname] = word
        if is_accepted:
            self._accepted.add(fullname)
        if fails_test:
            self._failed_by_verdict.add(fullname)

    @cached_property
    def fingerprint(self) -> str:
        """Of the environment of the whole session, whichever cells it measures."""
        return describe_host(self._environ, self._num_cores).fingerprint

    @cached_property
    def probe_s(self) -> dict[str, float]:
        """Seconds of each host probe, which run when they are first asked for.

        All sessions are to ask at the same point, which is when their cells are measured.
        """
        return probe_host()

    def pytest_sessionstart(self) -> None:
        """Make pytest-benchmark's own files whole or absent."""
        self._replace_writers()

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Describe the machine, not the moment, or each run would differ from each other."""
        drop_volatile_facts(machine_info)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Stamp a run; called for each file that is made of it."""
        names = [benchmark["fullname"] for benchmark in output_json["benchmarks"]]
        put_stamp(output_json, self._make_stamp(names))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that failed by itself, in whichever phase, and how long it took."""
        self._durations_s[report.nodeid] += report.duration
        is_verdicts = report.when == "call" and report.nodeid in self._failed_by_verdict
        if report.failed and not hasattr(report, "wasxfail") and not is_verdicts:
            self._failed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file whose tests could not be collected."""
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_keyboard_interrupt(self) -> None:
        """Count a session that was cut off: what it was at has no report, but may have times."""
        self._failed.add("the test that was interrupted")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End in 12 where a file could not be written, and nothing graver happened."""
        if self.write_errors and session.exitstatus in _LESSER_EXITS:
            session.exitstatus = ExitCode.REFUSED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the files that could not be written."""
        for error in self.write_errors:
            terminalreporter.write_line(f"perfsuite: {error}", red=True)

    def _make_stamp(self, names: Sequence[str]) -> RunStamp:
        try:
            fingerprint: str | None = self.fingerprint
        except DeviceError:  # a GPU was lost meanwhile, and the times are kept all the same
            fingerprint = None
        return RunStamp(
            fingerprint=fingerprint,
            probe_s=self.probe_s if _is_stored(self._config) else None,
            num_failed=len(self._failed),
            is_pull_request=is_pull_request(self._environ),
            verdicts=self._verdicts,
            accepted=tuple(sorted(self._accepted)),
            durations_s={name: round(self._durations_s[name], 3) for name in names},
            shard=self.shard,
        )

    def _replace_writers(self) -> None:
        # pytest-benchmark offers no hook for the writing itself, so the two methods that write are
        # replaced on the session's own objects.
        session: Any = self._config.pluginmanager.get_plugin(_PLUGIN_NAME)
        if session is None:
            return

        def save_json(output_json: Any) -> None:
            try:
                write_atomically(Path(session.json), _encode(output_json))
            except WriteError as error:
                self.write_errors.append(error)
                return
            session.logger.info(f"Wrote benchmark data in: {session.json}", purple=True)

        session.save_json = save_json
        attach_storage(self._config, session)
        if not isinstance(session.storage, FileStorage | UrlStorage):
            return  # Elasticsearch writes whole documents
        storage: Any = session.storage

        def save(output_json: Any, name: str) -> None:
            try:
                path = save_run(storage.get(name).parent, name, _encode(output_json))
            except WriteError as error:
                self.write_errors.append(error)
                return
            session.logger.info(f"Saved benchmark data in: {path}")

        storage.save = save


def close_json(config: pytest.Config) -> None:
    """Keep the path alone of a file that pytest-benchmark 5.2 opens while it reads its options."""
    opened: Any = config.getoption("benchmark_json", None)
    if hasattr(opened, "close"):
        opened.close()
        config.option.benchmark_json = Path(opened.name)


def commit_info(config: pytest.Config) -> dict[str, Any]:
    """Return what pytest-benchmark stores of the commit that is measured."""
    info: dict[str, Any] = config.hook.pytest_benchmark_generate_commit_info(config=config)
    config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=info)
    return info


def write_run(config: pytest.Config, path: Path) -> None:
    """Write all benchmarks of the session as pytest-benchmark JSON, raw rounds included.

    Raises:
        WriteError: The file cannot be written.
    """
    session: Any = config.pluginmanager.get_plugin(_PLUGIN_NAME)
    output = config.hook.pytest_benchmark_generate_json(
        config=config,
        benchmarks=session.benchmarks,
        include_data=True,
        machine_info=session.get_machine_info(),
        commit_info=commit_info(config),
    )
    config.hook.pytest_benchmark_update_json(
        config=config, benchmarks=session.benchmarks, output_json=output
    )
    write_atomically(path, _encode(output))


def drop_volatile_facts(machine_info: dict[str, Any]) -> None:
    """Remove what differs between two runs on one machine, such as the clock rate just now."""
    cpu = machine_info.get("cpu", {})
    for name in [name for name in cpu if name.startswith("hz_actual")]:
        del cpu[name]


def _is_stored(config: pytest.Config) -> bool:
    """Whether the user keeps the run; half a second of probing is not spent on one that is not."""
    return any(config.getoption(f"benchmark_{name}") for name in ("save", "autosave", "json"))


def _encode(output: Any) -> bytes:
    # pytest-benchmark's own form, with what JSON cannot hold as its text.
    return json.dumps(output, ensure_ascii=True, indent=4, default=str).encode()


# Where runs are stored; None where that is no place for files.
STORAGE = pytest.StashKey[AnyPath | None]()
# What pytest-benchmark is to compare with once it has the storage.
_COMPARED = pytest.StashKey[Any]()

_STORAGE_OF_PYTEST_BENCHMARK = "file://./.benchmarks"
_STORAGE = "file://./baselines"
# The one other kind of URL that pytest-benchmark knows; it stays its own affair.
_ELASTICSEARCH = "elasticsearch+"
# How pytest-benchmark asks for every run of this machine.
_NUMBERED = "[0-9][0-9][0-9][0-9]_"


def settle_storage(config: pytest.Config) -> None:
    """Store under `baselines/`, where people review what they commit; an explicit place stays.

    Raises:
        pytest.UsageError: It is a URL that nothing can be stored at.
    """
    given = config.getoption("benchmark_storage", None)
    if given is None:
        return
    if given == _STORAGE_OF_PYTEST_BENCHMARK:
        given = config.option.benchmark_storage = _STORAGE
    if given.startswith(_ELASTICSEARCH):
        config.stash[STORAGE] = None
        return
    try:
        place = locate(given, "--benchmark-storage")
    except SettingError as error:
        raise pytest.UsageError(str(error)) from error
    if isinstance(place, RemotePath):
        # A folder that is there already, since pytest-benchmark makes the one that it is given, and
        # nothing to look for in it.
        config.option.benchmark_storage = f"file://{config.rootpath}"
        config.stash[_COMPARED] = config.option.benchmark_compare
        config.option.benchmark_compare = None
    else:
        place = config.invocation_params.dir / place
    config.stash[STORAGE] = place


def attach_storage(config: pytest.Config, session: Any) -> None:
    """Give the session of pytest-benchmark the storage that a URL names, where one does."""
    place = config.stash.get(STORAGE, None)
    if isinstance(place, RemotePath):
        session.storage = UrlStorage(place, session)
        session.compare = config.stash[_COMPARED]
        session.handle_loading()


class UrlStorage:
    """What pytest-benchmark's session asks of a storage, of one that a URL names."""

    def __init__(self, place: RemotePath, session: Any) -> None:
        """Stand in for the storage of a session of pytest-benchmark."""
        self._place = place
        self._machine: str = session.machine_id
        self._logger = session.logger

    def __str__(self) -> str:
        return str(self._place)

    @property
    def location(self) -> str:
        """The place, for people."""
        return str(self._place)

    def get(self, name: str) -> RemotePath:
        """Return the path of a run of this machine."""
        return self._place / self._machine / name

    def load(self, selector: str | None = None) -> Iterator[tuple[PurePosixPath, Any]]:
        """Yield the runs that a selector names, the newest last; that one alone without any."""
        try:
            found = find_runs(self._place, selector or _NUMBERED)
        except StorageError as error:
            pytest.exit(f"perfsuite: {error}", returncode=ExitCode.REFUSED)
        except SettingError as error:
            raise pytest.UsageError(str(error)) from error
        for path in found if selector else reversed(found):
            run = read_run(path)
            if isinstance(run, Unusable):
                self._logger.warning(f"Failed to load {run}")
                continue
            yield PurePosixPath(path.parent.name, path.name), read_json(path)
            if selector is None:
                return


def put_stamp(output_json: dict[str, Any], stamp: RunStamp) -> None:
    """Put the stamp where `read_run` looks for it; for `pytest_benchmark_update_json`.

    The benchmarks come last, so that `read_head` need not read them.
    """
    output_json[STAMP_KEY] = msgspec.to_builtins(stamp)
    output_json["benchmarks"] = output_json.pop("benchmarks")
