"""What pytest-benchmark stores of a session: whole files, stamped, and none over another.

Its JSON and its saves stay its own, but for how they reach the disk, and if they may be a baseline.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from pytest_benchmark.storage.file import FileStorage

from perfsuite.errors import DeviceError, ExitCode, WriteError
from perfsuite.gate.arms.command import options_of_cells
from perfsuite.gate.baselines.digests import CellDigests
from perfsuite.gate.baselines.select import find_runs, save_run
from perfsuite.plugin import recorder
from perfsuite.plugin.output import ends_on_mistakes
from perfsuite.records.run_file import STAMP_KEY, RunStamp, Unusable, read_run
from perfsuite.records.shard import ShardStamp
from perfsuite.records.verdict import CellVerdict, most_severe
from perfsuite.system.environment import Environment, describe_host, is_pull_request
from perfsuite.system.files import write_atomically
from perfsuite.system.fitness import probe_host
from perfsuite.system.json_files import read_json_as
from perfsuite.system.urls import AnyPath, RemotePath, locate_folder

# Tells later plugins where run.json was written, and the tolerance and limit of its verdicts.
WRITTEN_RUN = pytest.StashKey[tuple[Path, float, float]]()
# Where runs are stored; None where files cannot be stored there.
STORAGE = pytest.StashKey[AnyPath | None]()

_DEFAULT_OF_PYTEST_BENCHMARK = "file://./.benchmarks"
# Where people review what they commit.
_DEFAULT = "file://./baselines"
# pytest-benchmark knows one other kind of URL, and writes whole documents there itself.
_ELASTICSEARCH = "elasticsearch+"
# How pytest-benchmark asks for every run of this machine.
_NUMBERED = "[0-9][0-9][0-9][0-9]_"


class RunSaver:
    """The plugin of one session that stamps its run and makes each file of it whole or absent."""

    def __init__(
        self,
        config: pytest.Config,
        environ: Mapping[str, str],
        num_cores: int,
        probe_device: Callable[[], Mapping[str, float]],  # seconds of each probe of a rank's GPU
    ) -> None:
        """Take the machine as it was before any test could change what this process sees of it."""
        self.write_errors: list[str] = []
        self.shard: ShardStamp | None = None  # None for a whole session
        # Tests that failed by themselves, and files that could not be collected.
        self.failed: set[str] = set()
        # The gate adds a cell's before the report of its test is logged.
        self.verdicts: dict[str, CellVerdict] = {}
        self._config, self._environ, self._num_cores = config, environ, num_cores
        self._probe_device = probe_device
        self.environments: dict[str, Environment] = {}  # of ranks so far, by fingerprint
        self.durations_s: defaultdict[str, float] = defaultdict(float)

    @cached_property
    def environment(self) -> Environment:
        """That of the whole session, whichever cells it measures."""
        return describe_host(self._environ, self._num_cores)

    @cached_property
    def digests(self) -> CellDigests:
        """Of each cell's benchmark files, recipe and workload, as they are when they are needed."""
        config = self._config
        paths = [Path(argument.partition("::")[0]) for argument in config.args]
        paths = [config.invocation_params.dir / path for path in paths]
        words = [*config.getini("addopts"), *map(str, config.invocation_params.args)]
        words = [word for word in words if word not in config.args]
        options = options_of_cells(words, self._environ)
        return CellDigests(config.rootpath, paths, config.getini("python_files"), options)

    @cached_property
    def probe_s(self) -> dict[str, float]:
        """Seconds of each probe, which run when the first cell is measured, or at the end."""
        return {**probe_host(), **self._probe_device()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Describe the machine, not the moment, or each run would differ from each other."""
        cpu = machine_info.get("cpu", {})
        for name in [name for name in cpu if name.startswith("hz_actual")]:
            del cpu[name]

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Stamp a run; called for each file that is made of it."""
        # Another plugin may have run a test again that failed: the last time counts.
        benchmarks = {one["fullname"]: one for one in output_json["benchmarks"]}
        output_json["benchmarks"] = [*benchmarks.values()]
        kept = {name: one["extra_info"].get(STAMP_KEY) for name, one in benchmarks.items()}
        records = {name: one if isinstance(one, dict) else {} for name, one in kept.items()}
        put_stamp(output_json, self._make_stamp(records))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that failed by itself, in whichever phase, and how long it took."""
        self.durations_s[report.nodeid] += report.duration
        verdict = self.verdicts.get(report.nodeid)
        is_verdicts = report.when == "call" and verdict is not None and verdict.shown == "FAIL"
        if report.failed and not hasattr(report, "wasxfail") and not is_verdicts:
            self.failed.add(report.nodeid)

    def fail(self, error: WriteError) -> None:
        """Keep that a file could not be written; a full disk refuses the line of each cell."""
        if str(error) not in self.write_errors:
            self.write_errors.append(str(error))

    def pytest_keyboard_interrupt(self) -> None:
        """Count a session that was cut off: what it was at has no report, but may have times."""
        self.failed.add("the test that was interrupted")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End in 12 where a file could not be written, and nothing more severe happened."""
        if self.write_errors:
            session.exitstatus = most_severe([int(session.exitstatus), ExitCode.REFUSED])

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the files that could not be written."""
        for error in self.write_errors:
            terminalreporter.write_line(f"perfsuite: {error}", red=True)

    def _make_stamp(self, records: Mapping[str, Mapping[str, Any]]) -> RunStamp:
        try:
            own = {self.environment.fingerprint: self.environment}
        except DeviceError:  # a GPU was lost meanwhile, and the times are kept all the same
            own = {}
        # Half a second of probing is not spent on a run that is not kept.
        kept = (f"benchmark_{name}" for name in ("save", "autosave", "json"))
        verdicts = self.verdicts.items()
        digests = {name: self.digests.of(name, record) for name, record in records.items()}
        return RunStamp(
            fingerprint=next(iter(own), None),
            environments={**own, **self.environments},
            probe_s=self.probe_s if any(map(self._config.getoption, kept)) else None,
            num_failed=len(self.failed),
            is_pull_request=is_pull_request(self._environ),
            verdicts={name: one.word for name, one in verdicts},
            accepted=tuple(sorted(name for name, one in verdicts if one.is_accepted_slowdown)),
            exceptions={name: one.accepted for name, one in verdicts if one.accepted},
            durations_s={name: round(self.durations_s[name], 3) for name in records},
            digests={name: digest for name, digest in digests.items() if digest is not None},
            shard=self.shard,
        )

    def replace_writers(self) -> None:
        """Make pytest-benchmark's own files whole or absent."""
        if (session := recorder.session_of(self._config)) is not None:
            session.save_json = self._save_json
            use_storage(self._config, self.fail)

    def _save_json(self, output_json: Any) -> None:
        session = recorder.session_of(self._config)
        try:
            write_atomically(Path(session.json), encode_run(output_json))
            session.logger.info(f"Wrote benchmark data in: {session.json}", purple=True)
        except WriteError as error:
            self.fail(error)


def commit_info(config: pytest.Config) -> dict[str, Any]:
    """Return what pytest-benchmark stores of the commit that is measured."""
    info: dict[str, Any] = config.hook.pytest_benchmark_generate_commit_info(config=config)
    config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=info)
    return info


def write_run(config: pytest.Config, path: Path) -> None:
    """Write all benchmarks as pytest-benchmark JSON with raw rounds; raises a WriteError."""
    session, hook = recorder.session_of(config), config.hook
    about = {"machine_info": session.get_machine_info(), "commit_info": commit_info(config)}
    of_both: dict[str, Any] = {"config": config, "benchmarks": session.benchmarks}
    output = hook.pytest_benchmark_generate_json(**of_both, include_data=True, **about)
    hook.pytest_benchmark_update_json(**of_both, output_json=output)
    write_atomically(path, encode_run(output))


def put_stamp(output_json: dict[str, Any], stamp: RunStamp) -> None:
    """Put the stamp where `read_run` looks for it."""
    output_json[STAMP_KEY] = msgspec.to_builtins(stamp)
    # Last, so that `read_head` need not read them.
    output_json["benchmarks"] = output_json.pop("benchmarks")


def encode_run(output_json: Any) -> bytes:
    """Return a run as pytest-benchmark writes it, with what JSON cannot hold as its text."""
    return json.dumps(output_json, ensure_ascii=True, indent=4, default=str).encode()


def use_storage(config: pytest.Config, fail: Callable[[WriteError], None]) -> None:
    """Store where the option says, else under `baselines/`; raises a UsageError for a wrong URL."""
    given: str = config.getoption("benchmark_storage")
    session = recorder.session_of(config)
    words = (*config.invocation_params.args, *config.getini("addopts"))
    said = " ".join([*map(str, words), os.environ.get("PYTEST_ADDOPTS", "")])
    if given == _DEFAULT_OF_PYTEST_BENCHMARK and "--benchmark-storage" not in said:
        given = config.option.benchmark_storage = _DEFAULT
    if given.startswith(_ELASTICSEARCH):
        config.stash[STORAGE] = None
        session.storage = recorder.open_storage(config, given)
        return
    with ends_on_mistakes():
        place = locate_folder(given, "--benchmark-storage")
    if isinstance(place, RemotePath):
        config.stash[STORAGE] = place
        session.storage = UrlStorage(place, session, fail)
    else:
        config.stash[STORAGE] = config.invocation_params.dir / place
        session.storage = FolderStorage(place, session, fail)


class FolderStorage(FileStorage):
    """pytest-benchmark's storage in a folder; two sessions never take one number."""

    def __init__(self, place: Path, session: Any, fail: Callable[[WriteError], None]) -> None:
        super().__init__(place, session.logger, session.machine_id)  # type: ignore[no-untyped-call]
        self.fail = fail

    def save(self, output_json: Any, name: str) -> None:
        """Write a run whole, under the next number that is free."""
        try:
            folder = self.get(name).parent  # type: ignore[no-untyped-call]
            path = save_run(folder, name, encode_run(output_json))
            self.logger.info(f"Saved benchmark data in: {path}")
        except WriteError as error:
            self.fail(error)


class UrlStorage(FolderStorage):
    """A storage behind a URL, with the methods that pytest-benchmark's session calls."""

    path: RemotePath  # type: ignore[assignment]
    location = property(str)

    def __init__(self, place: RemotePath, session: Any, fail: Callable[[WriteError], None]) -> None:
        self.path, self.logger, self.fail = place, session.logger, fail
        self.default_machine_id: str = session.machine_id

    def get(self, name: str) -> RemotePath:
        """Return the path of a run of this machine."""
        return self.path / self.default_machine_id / name

    def load(self, selector: str | None = None) -> Iterator[tuple[PurePosixPath, Any]]:
        """Yield the runs that a selector names, the newest last; without one, only the newest."""
        with ends_on_mistakes():
            found = find_runs(self.path, selector or _NUMBERED)
        for path in found if selector else reversed(found):
            run = read_run(path)
            if isinstance(run, Unusable):
                self.logger.warning(f"Failed to load {run}")
                continue
            yield PurePosixPath(path.parent.name, path.name), read_json_as(path, dict)
            if selector is None:
                return
