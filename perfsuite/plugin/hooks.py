"""The hooks of every pytest session: they find out whether it is ours, and change nothing else.

A session is ours where one of our settings is given, or a collected test uses one of our measuring
fixtures. What such a session needs is imported only then, or where a test uses another fixture.
"""

import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.errors import NotExercisedError, PerfsuiteError
from perfsuite.plugin import fixtures, options, recorder
from perfsuite.plugin.output import HeldOutput, ends_on_mistakes

if TYPE_CHECKING:
    from perfsuite.plugin.session.choices import Choices
    from perfsuite.plugin.session.measured_session import MeasuredSession

# The arm's plugin reads it in both arms, whose perfsuite may differ from the gate's.
TAKES_TURNS = 2

# Before any conftest: pytest loads this module with the entry points.
_ENVIRONMENT = dict(os.environ)
# Every launch of a gate has them on its command line, and an ini value where the session is ours.
_SET_BY_ARMS = {"gate", "numerics", "report"}
# Where a worker of xdist leaves why its session is refused.
_REFUSAL = "perfsuite_refusal"
_ADVICE = (
    "perfsuite: --benchmark-compare is pytest-benchmark's own here, one run beside another; "
    "perf_gate = on in the ini file, or --perf-gate=on, makes it a gate"
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Come before pytest-benchmark, which reads its own options next."""
    config.addinivalue_line(
        "markers",
        "perf(tolerance='2%', limit='5%', floor='50us', counts={...}, matrix='default'): "
        "how a cell is judged, and the smallest matrix that it belongs to.",
    )
    ownership = Ownership(config)
    config.stash[fixtures.RUNNER] = ownership.begin
    config.pluginmanager.register(fixtures, "perfsuite-fixtures")
    config.pluginmanager.register(ownership, "perfsuite-ownership")


class Ownership:
    """Whether a session is ours; decided once, when collection ends."""

    def __init__(self, config: pytest.Config) -> None:
        # Before any test can change them.
        self.environ = dict(os.environ)
        self.num_cores = len(os.sched_getaffinity(0))
        self.failed_collections: list[str] = []
        self.held_output: HeldOutput | None = None  # of a rank that may turn out to be silent
        self.is_ours = False
        self._is_arm = "PERFSUITE_ARM_CHANNEL" in self.environ
        self._config = config
        self._measured: MeasuredSession | None = None
        self._choices: Choices | None = None
        given = options.given(config, overridden=_SET_BY_ARMS if self._is_arm else ())
        self._is_set = given not in ({}, {"gate": "off"})  # which alone makes no session ours
        if self._is_set and not self._is_arm:  # the gate has checked what its launches get
            self._choices = self._resolve()
        is_of_torchrun = not self._is_arm and "WORLD_SIZE" in self.environ
        if is_of_torchrun and self.environ.get("RANK", "0") != "0":
            self.held_output = HeldOutput()
        self._given = recorder.withhold_storage(config)

    def _resolve(self) -> "Choices":
        from perfsuite.plugin.session.choices import resolve
        from perfsuite.plugin.session.sharding import refuse_own_choices

        with ends_on_mistakes():
            choices = resolve(self._config, self.environ, _ENVIRONMENT)
            refuse_own_choices(choices.shard, vars(self._config.option))
        return choices

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Decide in the process that starts xdist's workers, which collects nothing itself."""
        self._given = recorder.give_options_back(self._config, self._given)
        option = self._config.option
        is_xdist_controller = getattr(option, "dist", "no") != "no" and not option.collectonly
        if is_xdist_controller and self._choices is not None:
            self.is_ours = True
            self.begin()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what could not be collected."""
        if report.failed:
            self.failed_collections.append(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Decide before any plugin deselects a test, and choose from those that all have left."""
        self.is_ours = self._is_set or any(map(fixtures.is_cell, items))
        if self._given.compare and not self._is_arm and options.given(self._config):
            from perfsuite.plugin.session.choices import refuse_change

            with ends_on_mistakes():
                refuse_change(self._config, _ENVIRONMENT, measures=self.is_ours)
        # A launch of plain benchmarks needs none: the gate chooses its cells and keeps its times.
        if (self.is_ours and not self._is_arm) or any(map(fixtures.uses_ranks, items)):
            self.begin()
        result = yield
        if self.is_ours and self._measured is not None:
            self.begin(items)
        elif self.is_ours:
            recorder.write_nothing(self._config)
        return result

    def begin(self, items: list[pytest.Item] | None = None) -> "MeasuredSession":
        """Return the session that measures, and let it choose its cells of the items, if given.

        A UsageError reaches the user from xdist's workers, too.
        """
        from perfsuite.plugin.session.measured_session import MeasuredSession

        try:
            self._choices = self._choices or self._resolve()
            self._measured = self._measured or MeasuredSession(self._config, self._choices, self)
            if items is not None:
                self._measured.choose_cells(items)
        except pytest.UsageError as error:
            recorder.write_nothing(self._config)  # nor say that there is nothing to write
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput[_REFUSAL] = str(error)
            raise
        return self._measured

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Refuse the session where a worker of xdist found that it is ours."""
        if (refusal := getattr(node, "workeroutput", {}).get(_REFUSAL)) is not None:
            self.is_ours = True
            raise pytest.UsageError(refusal)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Let pytest-benchmark read and announce runs, where that is its own affair."""
        if self.held_output is not None and not self.is_ours:
            self.held_output.show()
        if self._given.storage is None:
            return
        session = recorder.session_of(self._config)
        if not self.is_ours:
            session.storage = recorder.open_storage(self._config, self._given.storage)
        if not self.is_ours or (self._measured is not None and not self._measured.is_gated):
            session.compare = self._given.compare
            session.handle_loading()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Show a user's mistake in one message."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, PerfsuiteError) and (self.is_ours or self._measured is not None):
            report.longrepr = f"{type(error).__name__}: {error}"
            if isinstance(error, NotExercisedError):
                path, line_number, _ = item.location
                report.outcome = "skipped"
                report.longrepr = (str(path), (line_number or 0) + 1, f"NOT EXERCISED: {error}")
            recorder.expect_no_record(getattr(item, "funcargs", {}).get("benchmark"))
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say in one line how to gate, where --benchmark-compare was not the gate."""
        is_off = options.given(self._config).get("gate") == "off"
        if self._given.compare and not self.is_ours and not is_off:
            terminalreporter.write_line(_ADVICE)

    def pytest_unconfigure(self) -> None:
        """Show what was held back in a session that ended before anything was decided."""
        if self.held_output is not None:
            self.held_output.show()
