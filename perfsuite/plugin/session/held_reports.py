"""Reports of cells that stored runs leave open: they wait until pairs have judged all of these."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from perfsuite.plugin.session.gate import SessionGate
from perfsuite.records.verdict import CellVerdict

Finish = Callable[[pytest.Item, Sequence[pytest.TestReport], CellVerdict], None]


class HeldReports:
    """Runs the cells that may be left open, and shows those that were once they have a verdict."""

    def __init__(self, gate: SessionGate, finish: Finish) -> None:
        """Take what puts a verdict into the reports of a cell."""
        self._gate = gate
        self._finish = finish
        self._held: list[tuple[pytest.Item, Sequence[pytest.TestReport]]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> object | None:
        """Run a cell that may be left open; any other is pytest's to run."""
        if not self._gate.may_leave_open(item):
            return None
        runner: Any = item.config.pluginmanager.get_plugin("runner")
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runner.runtestprotocol(item, nextitem=nextitem, log=False)
        if self._gate.is_open(item.nodeid):
            self._held.append((item, reports))
        else:
            _show(item, reports)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Have all cells that are open judged at once, after the last test."""
        try:
            result = yield
            verdicts = self._gate.judge_open()
            for item, reports in self._held:
                self._finish(item, reports, verdicts[item.nodeid])
            return result
        finally:
            for item, reports in self._held:
                _show(item, reports)


def _show(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
