"""The pytest plugin: fixtures, options, hooks, terminal.

Everything that knows pytest and nothing else: cells are run by `session`, recorded by `recorder`,
shown by `report`. Costs nothing where unused, and never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any, Literal

import pytest

from perfsuite import options, recorder
from perfsuite.cells import Recipe
from perfsuite.errors import (
    BusyMachineError,
    NotExercisedError,
    PerfsuiteError,
    SettingError,
    WriteError,
)
from perfsuite.files import append_line, remove_file
from perfsuite.records import CellLine, EquivalenceReport, Outcome, encode_line, to_plain
from perfsuite.registry import Workload
from perfsuite.report.tables import not_exercised_lines, progress_line, terminal_table
from perfsuite.session import Session

# What the exit codes beside pytest's own mean: the environment was refused or a file could not be
# written; nothing was compared.
_EXIT_REFUSED = 12
_EXIT_NOTHING_COMPARED = 13

# Read by the gate in the launches of both arms, whose perfsuites may be older or newer than it.
TAKES_TURNS = True

_MEASURING_FIXTURES = (
    "train_benchmark",
    "loader_benchmark",
    "evaluation_benchmark",
    "all_reduce_benchmark",
)
_PROGRESS = "perfsuite"

Measure = Callable[..., Outcome]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini twins."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Resolve the options before pytest-benchmark reads its own."""
    config.addinivalue_line(
        "markers",
        "perf(tolerance='2%', limit='5%', floor='50us', counts={...}, matrix='default'): "
        "how a cell is judged, and the smallest matrix that it belongs to.",
    )
    try:
        choices = options.resolve(config)
    except SettingError as error:
        raise pytest.UsageError(str(error)) from error
    suite = Suite(config, choices)
    config.stash[_SUITE] = suite
    config.pluginmanager.register(suite, "perfsuite-suite")
    recorder.set_default_storage(config)


class Suite:
    """One pytest session's cells: what was asked for, what runs them, what became of them."""

    def __init__(self, config: pytest.Config, choices: options.Choices) -> None:
        self._config = config
        self._choices = choices
        self._session: Session | None = None
        self._lines: list[CellLine] = []
        self._write_error: WriteError | None = None

    @property
    def checks_numerics(self) -> bool:
        """Whether cells are checked before they are timed."""
        return self._choices.checks_numerics

    @property
    def session(self) -> Session:
        """The session, made when the first test needs it."""
        if self._session is None:
            self._session = Session(self._choices.settings, say=self._say)
        return self._session

    def _say(self, text: str) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(text)

    def pytest_report_header(self) -> str:
        """Say what the session measures with."""
        settings = self._choices.settings
        return (
            f"perfsuite: device {settings.device}, matrix {self._choices.matrix}, "
            f"{settings.num_rounds} rounds, seed {settings.seed}"
        )

    def pytest_sessionstart(self) -> None:
        """Make pytest-benchmark's own files whole or absent."""
        recorder.make_writes_atomic(self._config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Describe the machine, not the moment, or each run would differ from each other."""
        recorder.drop_volatile_facts(machine_info)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check markers, choose the matrix, and give each cell its clock."""
        try:
            for item in items:
                options.marker_arguments(item)
        except SettingError as error:
            raise pytest.UsageError(str(error)) from error
        matrix = self._choices.matrix
        outside = [item for item in items if not options.is_in_matrix(item, matrix)]
        if outside:
            self._config.hook.pytest_deselected(items=outside)
            items[:] = [item for item in items if options.is_in_matrix(item, matrix)]
        for item in items:
            if _is_cell(item):
                recorder.use_rank_clock(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Refuse a machine without enough GPUs before the first test."""
        required = self._choices.require_gpus
        if required == 0 or session.config.option.collectonly:
            return
        found = self.session.hardware.num_gpus
        if found < required:
            pytest.exit(
                f"perfsuite: {required} GPUs are required (--perf-require-gpus), and {found} "
                "are visible; run on another machine, or lower the number",
                returncode=_EXIT_REFUSED,
            )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Tell a user's mistake in one message, and keep the line of a cell that ended."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, BusyMachineError):
            pytest.exit(f"perfsuite: {error}", returncode=_EXIT_REFUSED)
        if isinstance(error, NotExercisedError):
            path, line_number, _ = item.location
            report.outcome = "skipped"
            report.longrepr = (str(path), (line_number or 0) + 1, f"NOT EXERCISED: {error}")
        elif isinstance(error, PerfsuiteError):
            report.longrepr = f"{type(error).__name__}: {error}"
        if isinstance(error, PerfsuiteError):
            recorder.expect_no_record(item)
        if report.when == "call" and _is_cell(item) and recorder.is_recorded(item):
            line = _line_of(item, report, error)
            self._keep(line)
            report.user_properties.append((_PROGRESS, progress_line(line)))
        return report

    def _keep(self, line: CellLine) -> None:
        """Append a cell that ended to cells.jsonl, which each session begins anew."""
        path = self._choices.results / "cells.jsonl"
        try:
            if not self._lines:
                remove_file(path)
            append_line(path, encode_line(line))
        except WriteError as error:
            self._write_error = error
        self._lines.append(line)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show no dot for a measured cell: it gets a line."""
        if report.when == "call" and report.passed and _progress_of(report) is not None:
            return "passed", "", "MEASURED"
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show the line of a cell that ended."""
        text = _progress_of(report)
        if report.when == "call" and text is not None:
            self._say(f"  {text}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the run; what could not be written or judged is not a success."""
        if self._session is not None:
            self._session.close()
        if not any(line.perfsuite is not None for line in self._lines):
            return
        try:
            recorder.write_run(self._config, self._choices.results / "run.json")
        except WriteError as error:
            self._write_error = error
        if session.exitstatus == pytest.ExitCode.OK:
            if self._write_error is not None:
                session.exitstatus = _EXIT_REFUSED
            elif recorder.is_comparing(self._config):
                session.exitstatus = _EXIT_NOTHING_COMPARED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the table of the cells that were measured."""
        if any(line.perfsuite is not None for line in self._lines):
            terminalreporter.section("perfsuite", sep="=")
            terminalreporter.write_line(terminal_table(self._lines))
            for text in not_exercised_lines(self._lines):
                terminalreporter.write_line(text)
            terminalreporter.write_line(f"written to {self._choices.results}")
            if recorder.is_comparing(self._config):
                terminalreporter.write_line(
                    "perfsuite: --benchmark-compare shows pytest-benchmark's comparison; this "
                    "version has no gate, so no cell was judged (exit 13)"
                )
        if self._write_error is not None:
            terminalreporter.write_line(f"perfsuite: {self._write_error}", red=True)


_SUITE = pytest.StashKey[Suite]()
_OUTCOME = pytest.StashKey[Outcome]()


@pytest.fixture
def rank_group(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Run `rank_group(num_ranks, function, *args)` on real ranks.

    The default process group is initialised in each rank. Returns the results in rank order; raises
    RankFailureError for the first failing rank, with its exit code or signal and its message.
    """
    session = request.config.stash[_SUITE].session
    by_value = _modules_of(request)

    def run(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        return session.run_function(num_ranks, function, args, by_value=by_value)

    return run


@pytest.fixture
def check_equivalence(request: pytest.FixtureRequest) -> Callable[..., EquivalenceReport]:
    """Check the numerics alone: `check_equivalence(workload, recipe, *, num_steps=3)`.

    Returns an EquivalenceReport: assert its `is_equivalent`, or its `status`. Never skips: what
    this machine cannot exercise has the status "not exercised", with the reason.
    """
    session = request.config.stash[_SUITE].session
    by_value = _modules_of(request)

    def check(workload: str | Workload, recipe: Recipe, *, num_steps: int = 3) -> EquivalenceReport:
        return session.verify(workload, recipe, num_steps=num_steps, by_value=by_value)

    return check


@pytest.fixture
def train_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure training steps: `train_benchmark(workload, recipe, *, rounds=None, iterations=None)`.

    First checks, once for all numbers of loader workers, that the recipe computes the same as one
    process; raises EquivalenceError, and times nothing, where it does not. Every round goes to
    pytest-benchmark; the record goes into its `extra_info`. Skips, with the reason, what this
    machine cannot exercise.
    """
    return _measuring(request, benchmark, "train")


@pytest.fixture
def loader_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure loading alone; called like `train_benchmark`."""
    return _measuring(request, benchmark, "load")


@pytest.fixture
def evaluation_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure evaluating the test split; called like `train_benchmark`."""
    return _measuring(request, benchmark, "evaluate")


@pytest.fixture
def all_reduce_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure the sum over ranks: `all_reduce_benchmark(parallel, message_bytes)`."""
    session = request.config.stash[_SUITE].session

    def measure(parallel: str, message_bytes: int) -> Outcome:
        _refuse_a_second_cell(request.node)
        is_timed = recorder.is_recorded(request.node)
        outcome = session.measure_all_reduce(parallel, message_bytes, is_timed=is_timed)
        _record(request.node, benchmark, outcome)
        return outcome

    return measure


def _measuring(
    request: pytest.FixtureRequest, benchmark: Any, activity: Literal["train", "load", "evaluate"]
) -> Measure:
    suite = request.config.stash[_SUITE]
    session = suite.session
    by_value = _modules_of(request)

    def measure(
        workload: str | Workload,
        recipe: Recipe,
        *,
        rounds: int | None = None,
        iterations: int | None = None,
    ) -> Outcome:
        _refuse_a_second_cell(request.node)
        numerics = None
        if activity == "train" and suite.checks_numerics:
            numerics = session.prove(workload, recipe, by_value=by_value).numerics
        outcome = session.measure_cell(
            workload,
            recipe,
            numerics=numerics,
            activity=activity,
            num_rounds=rounds,
            num_iterations=iterations,
            is_timed=recorder.is_recorded(request.node),
            by_value=by_value,
        )
        _record(request.node, benchmark, outcome)
        return outcome

    return measure


def _refuse_a_second_cell(item: pytest.Item) -> None:
    if _OUTCOME in item.stash:
        raise SettingError(
            f"{item.nodeid} has measured a cell already, and a test has one place to store its "
            "times; parametrize the test, or write another"
        )


def _record(item: pytest.Item, benchmark: Any, outcome: Outcome) -> None:
    benchmark.extra_info["perfsuite"] = to_plain(outcome.record)
    recorder.replay(benchmark, outcome.step_times_s, recorder.clock_of(item))
    item.stash[_OUTCOME] = outcome


def _line_of(item: pytest.Item, report: pytest.TestReport, error: BaseException | None) -> CellLine:
    outcome = item.stash.get(_OUTCOME, None)
    reason = None
    if isinstance(error, NotExercisedError):
        reason = str(error)
    elif error is not None:
        reason = f"{type(error).__name__}: {error}"
    elif outcome is None:
        reason = "the test measured nothing"
    elif outcome.missing:
        reason = "; ".join(f"no {name}: {why}" for name, why in sorted(outcome.missing.items()))
    return CellLine(
        fullname=item.nodeid,
        outcome=report.outcome,
        reason=reason,
        step_times_s=() if outcome is None else outcome.step_times_s,
        perfsuite=None if outcome is None else outcome.record,
    )


def _is_cell(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    return any(name in names for name in _MEASURING_FIXTURES)


def _progress_of(report: pytest.TestReport) -> str | None:
    return next((str(text) for name, text in report.user_properties if name == _PROGRESS), None)


def _modules_of(request: pytest.FixtureRequest) -> list[ModuleType]:
    """Return the test's module and all conftest modules: ranks cannot import those by name."""
    plugins = request.config.pluginmanager.get_plugins()
    conftests = [
        plugin
        for plugin in plugins
        if isinstance(plugin, ModuleType) and plugin.__name__.rpartition(".")[2] == "conftest"
    ]
    module: ModuleType | None = getattr(request, "module", None)
    return [*([module] if module is not None else []), *conftests]
