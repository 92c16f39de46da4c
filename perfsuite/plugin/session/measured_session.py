"""A pytest session that is ours, or that runs ranks: its cells, and what became of them."""

import contextlib
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
import pytest

from perfsuite import errors
from perfsuite.experiments.rank_session import Session
from perfsuite.gate import common_cells
from perfsuite.gate.arms.launched.collected import is_in_matrix, policy_of
from perfsuite.plugin import recorder
from perfsuite.plugin.fixtures import OUTCOME, is_cell
from perfsuite.plugin.output import ends_on_mistakes, legible, say
from perfsuite.plugin.session import markers, phases, saving, sharding
from perfsuite.plugin.session.choices import Choices
from perfsuite.plugin.session.gate import SessionGate, refuse_silent_passes
from perfsuite.plugin.session.phases import Raised
from perfsuite.plugin.session.torchrun import TorchrunSession
from perfsuite.records.cell import CellLine, encode_line
from perfsuite.records.verdict import CellVerdict
from perfsuite.report.rows import missing_lines, row_of_line, skipped_lines, slow_rank_lines
from perfsuite.report.summary import verdict_sentence
from perfsuite.report.terminal.gate import annotation_lines, verdict_lines
from perfsuite.report.terminal.tables import progress_line, report_table
from perfsuite.system.files import append_line, write_atomically
from perfsuite.system.signals import SIGNALLED, ends_on_signals, handled_by
from perfsuite.units import default_tolerance

if TYPE_CHECKING:
    from perfsuite.plugin.hooks import Ownership

_PROGRESS = "perfsuite"
CELLS_FILE = "cells.jsonl"


class MeasuredSession:
    """One pytest session's cells: the choices for them, what runs them, what became of them."""

    def __init__(self, config: pytest.Config, choices: Choices, ownership: "Ownership") -> None:
        """Have pytest call its hooks from now on; raises a UsageError for what cannot be done."""
        self._config = config
        self._environ, num_cores = ownership.environ, ownership.num_cores
        self.choices = choices
        # If not, it runs ranks for the fixtures and changes nothing else.
        self._is_ours = ownership.is_ours
        self._saver = saving.RunSaver(config, self._environ, num_cores, self._probe_device)
        self._saver.failed |= set(ownership.failed_collections)
        self._gate: SessionGate | None = None
        self._torchrun: TorchrunSession | None = None
        # A gate hears of an arm's cells, and to describe the machine takes an arm a second.
        self._writes = choices.policy.turns is None
        self._sharding = sharding.Sharding()
        self._foreign_markers: str | None = None
        self._failed_by_verdict: set[str] = set()
        self._session: Session | None = None
        self._signals = contextlib.ExitStack()
        config.add_cleanup(self._signals.close)
        self._lines: dict[str, CellLine] = {}
        if self._is_ours and choices.is_gate and config.getoption("benchmark_compare", None):
            refuse_silent_passes(config, is_under_torchrun=choices.membership is not None)
            self._gate = SessionGate(config, choices, self._saver, finish=self._finish_held)
        register = config.pluginmanager.register
        if choices.membership is not None:
            file, output = choices.results / CELLS_FILE, ownership.held_output
            self._torchrun = TorchrunSession(config, choices.membership, file, output)
            self._writes = choices.membership.is_first
            register(self._torchrun, "perfsuite-torchrun")
        if self._gate is not None:
            register(self._gate, "perfsuite-gate")
        register(phases, "perfsuite-phases")
        register(self, "perfsuite-session")
        if self._is_ours:
            register(self._saver, "perfsuite-saver")
            self._saver.replace_writers()

    @property
    def finished(self) -> Mapping[str, CellLine]:
        """Cells that were measured before torchrun started the ranks again."""
        return {} if self._torchrun is None else self._torchrun.finished

    @property
    def session(self) -> Session:
        """The session, made when the first test needs it."""
        if self._session is None:
            if self._torchrun is None:  # which ends all of its processes alike
                self._signals.enter_context(ends_on_signals(_end_session))
            choices, show = self.choices, partial(say, self._config)
            self._session = Session(
                choices.policy, say=show, num_rounds=choices.num_rounds, wait_s=choices.wait_s
            )
            self._saver.environments = self._session.environments
        return self._session

    def _probe_device(self) -> dict[str, float]:
        if self._session is None:  # nothing was measured on ranks
            return {}
        try:
            return self._session.probe_device()
        except errors.PerfsuiteError as error:
            # A GPU was lost meanwhile, and the run is kept all the same.
            say(self._config, f"the GPU was not probed: {error}")
            return {}

    @property
    def is_gated(self) -> bool:
        """Whether the gate compares, and not pytest-benchmark, which would take any newest file."""
        # With --benchmark-compare-fail pytest-benchmark compares too.
        return self._gate is not None and not self._config.getoption("benchmark_compare_fail", None)

    def choose_cells(self, items: list[pytest.Item]) -> None:
        """Check markers, choose the matrix and the shard, and give each cell its clock."""
        with ends_on_mistakes():
            for item in filter(recorder.is_benchmark, items):
                markers.check_markers(item)
                if self._writes and is_cell(item):
                    common_cells.policy_of(self.choices.gate, item.nodeid, policy_of(item))
            self._foreign_markers = markers.describe_foreign(items)
            matrix = self.choices.matrix
            self._select(items, lambda item: is_in_matrix(markers.own_markers(item), matrix))
            cells = [item.nodeid for item in items if recorder.is_benchmark(item)]
            named = self.choices.durations
            self._sharding = sharding.cut(self._config, cells, self.choices.shard, named)
        self._select(items, lambda item: self._sharding.owns(item.nodeid))
        self._saver.shard = self._sharding.stamp
        for item in items:
            if is_cell(item):
                recorder.use_rank_clock(item)

    def _select(self, items: list[pytest.Item], is_ours: Callable[[pytest.Item], bool]) -> None:
        if outside := [item for item in items if not is_ours(item)]:
            self._config.hook.pytest_deselected(items=outside)
            items[:] = [item for item in items if is_ours(item)]

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say what the session measures with, and which of the cells are its shard's."""
        choices, policy = self.choices, self.choices.policy
        lines = [
            f"perfsuite: device {policy.device}, matrix {choices.matrix}, "
            f"{choices.num_rounds or 'as many as the gate wants'} rounds, seed {policy.seed}"
        ]
        if self._sharding.described is not None:
            lines.append(f"perfsuite: {self._sharding.described}")
        return lines if self._is_ours and self._config.option.verbose >= 0 else lines[1:]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Refuse a machine without enough GPUs, and have cells judged, before the first test."""
        if session.config.option.collectonly:
            return
        required = self.choices.require_gpus
        found = self.session.hardware.num_gpus if required else 0
        if found < required:
            pytest.exit(
                f"perfsuite: --perf-require-gpus is {required}, and the number of visible GPUs is "
                f"{found}; run on another machine, or lower it",
                returncode=errors.ExitCode.REFUSED,
            )
        is_whole = not session.testsfailed or session.config.option.continue_on_collection_errors
        if self._gate is not None and is_whole:
            with ends_on_mistakes():
                if any(map(recorder.is_benchmark, session.items)):
                    self.session.hold_machine()
                self._gate.judge(session.items, self._sharding)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wait for the machine before a cell, where no time-out and no duration counts it."""
        if self.choices.policy.turns is None and is_cell(item) and recorder.is_recorded(item):
            own = errors.DeviceError, errors.WriteError  # which the cell itself meets, and says
            with ends_on_mistakes(), contextlib.suppress(*own):
                self.session.hold_machine()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the line of a cell that ended."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, errors.BusyMachineError):
            pytest.exit(f"perfsuite: {error}", returncode=errors.ExitCode.REFUSED)
        if not phases.is_over(item, report):
            return report
        if self._torchrun is not None:
            self._torchrun.agree_on(item, report, error)
        if self._gate is not None and not report.passed:
            self._gate.record_unmeasured(item, report, error)
        is_passed = report.when == "call" and report.passed
        if is_passed and self._gate and (verdict := self._gate.verdict_of(item)) is not None:
            self._tell(item, report, verdict)
        is_open = self._gate is not None and item.nodeid in self._gate.open_cells
        is_end = report.when == "call" or (report.when == "setup" and report.failed)
        if is_end and not is_open:
            self._keep_line(item, report, error)
        return report

    def _keep_line(self, item: pytest.Item, report: pytest.TestReport, error: Raised) -> None:
        is_plain = self._is_ours and recorder.is_benchmark(item) and not is_cell(item)
        if (is_plain or is_cell(item)) and recorder.is_recorded(item):
            line = self.finished.get(item.nodeid) or phases.line_of(item, report, error)
            self._keep(line)
            if not is_plain:
                report.user_properties.append((_PROGRESS, progress_line(line)))

    def _finish_held(
        self, item: pytest.Item, reports: Sequence[pytest.TestReport], verdict: CellVerdict
    ) -> None:
        """Let the reports of a cell that was left open end in its verdict."""
        for report in (report for report in reports if report.when == "call"):
            if report.passed:
                self._tell(item, report, verdict)
                reports[-1].user_properties = item.user_properties  # as JUnit XML has them
            self._keep_line(item, report, None)

    def _tell(self, item: pytest.Item, report: pytest.TestReport, verdict: CellVerdict) -> None:
        if (outcome := item.stash.get(OUTCOME, None)) is not None:
            record = msgspec.structs.replace(outcome.record, verdict=verdict.as_record())
            item.stash[OUTCOME] = msgspec.structs.replace(outcome, record=record)
        told = [("verdict", verdict.word), ("policy", verdict.policy)]
        item.user_properties += [(name, word) for name, word in told if word is not None]
        report.user_properties = [*item.user_properties]
        text = verdict_sentence(verdict)
        if verdict.shown != "FAIL":
            report.sections.append(("verdict", text))
        else:
            if not hasattr(report, "wasxfail"):  # pytest counts no such test
                self._failed_by_verdict.add(item.nodeid)
            report.outcome, report.longrepr = "failed", text

    def _keep(self, line: CellLine) -> None:
        is_first = not self._lines and not self.finished
        self._lines[line.fullname] = line
        has_lost_a_rank = self._torchrun is not None and self._torchrun.has_lost
        if not self._writes or line.fullname in self.finished or has_lost_a_rank:
            return
        path = self.choices.results / CELLS_FILE
        try:
            if is_first:
                write_atomically(path, encode_line(line) + b"\n")
            else:
                append_line(path, encode_line(line))
        except errors.WriteError as error:
            self._saver.fail(error)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Show no dot for a measured cell: it gets a line."""
        if report.passed and _progress_of(report) is not None:
            return "passed", "", "MEASURED"
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show the line of a cell that ended."""
        if (text := _progress_of(report)) is not None:
            say(self._config, f"  {text}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Keep a second Ctrl-C from cutting off the writing of what was measured."""
        if self._session is not None:
            self._signals.enter_context(handled_by(signal.SIG_IGN, [signal.SIGINT]))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the run; what could not be written or judged is not a success."""
        if self._session is not None:
            self._session.close()
        has_cells = any(line.step_times_s for line in self._lines.values())
        # A plain suite's is written too where a report on it was asked for.
        result, config = None if self._gate is None else self._gate.result, self._config
        is_run = config.pluginmanager.has_plugin("perfsuite.plugin.report")
        asks = is_run or config.getoption("--perf-report")
        is_wanted = (result or asks) and recorder.benchmarks_of(config)
        if self._writes and (has_cells or is_wanted or (result and result.cells)):
            self._write_run(self.choices.results / "run.json")
        if self._gate is not None and not session.config.option.collectonly:
            session.exitstatus = self._gated_exit(session)

    def _write_run(self, path: Path) -> None:
        gate = self.choices.gate
        try:
            saving.write_run(self._config, path)
        except errors.WriteError as error:
            if not self._saver.write_errors:  # one line for what lies in one folder
                self._saver.fail(error)
            return
        tolerance = default_tolerance(gate.limit) if gate.tolerance is None else gate.tolerance
        self._config.stash[saving.WRITTEN_RUN] = path, tolerance, gate.limit

    def _gated_exit(self, session: pytest.Session) -> int:
        """Pytest's own exit code where it says more than the verdicts, else theirs."""
        assert self._gate is not None
        self._gate.end()
        own = int(session.exitstatus)
        has_failed_tests = session.testsfailed > len(self._failed_by_verdict)
        if own not in (0, 1, 5) or (own == 1 and has_failed_tests):
            return own
        # This includes cells that vanished, were not reached, or were skipped only here.
        result = self._gate.result
        return errors.ExitCode.NOTHING_COMPARED if result is None else result.code

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the table of the cells that were measured."""
        lines = list(self._lines.values())
        if rows := [row for row in map(row_of_line, lines) if row is not None]:
            terminalreporter.section("perfsuite", sep="=")
            remarks = (*slow_rank_lines(rows), *missing_lines(lines), *skipped_lines(lines))
            for text in (report_table(rows), *remarks):
                terminalreporter.write_line(legible(text))
            if self._writes and not self._saver.write_errors:
                terminalreporter.write_line(f"written to {self.choices.results}")
        if self._gate is not None and self._gate.result is not None:
            terminalreporter.section("perfsuite gate", sep="=")
            result = self._gate.result
            annotations = annotation_lines(result.cells, self._config.rootpath, self._environ)
            verdicts = verdict_lines(result.cells, result.refusal, result.differs)
            for text in (*verdicts, *annotations):
                terminalreporter.write_line(legible(text))
        options = {*self.choices.gate.fixed, *(["base"] if self.choices.gate.base else [])}
        unused = None
        if self._gate is None and self.choices.policy.turns is None and options:
            unused = f"--perf-{min(options)} compares nothing without --benchmark-compare"
        for remark in filter(None, [unused, self._foreign_markers, self._sharding.why_empty]):
            terminalreporter.write_line(f"perfsuite: {remark}")


def _end_session(number: int) -> NoReturn:
    """End pytest in good order, so that what was measured is written, where a CI cancels."""
    name = signal.Signals(number).name
    pytest.exit(f"perfsuite: ended by {name}", returncode=SIGNALLED + number)


def _progress_of(report: pytest.TestReport) -> str | None:
    return next((str(text) for name, text in report.user_properties if name == _PROGRESS), None)
