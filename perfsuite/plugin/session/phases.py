"""How a phase of a test (setup, call, teardown) ended; its subtests are reported while it runs."""

from collections.abc import Generator
from typing import Literal, NamedTuple

import pytest

from perfsuite.errors import LostRankError, NotExercisedError
from perfsuite.plugin import recorder
from perfsuite.plugin.fixtures import OUTCOME
from perfsuite.records.cell import CellLine

# What a phase of a test raised, if anything.
Raised = BaseException | None

_IS_IN_CALL = pytest.StashKey[bool]()
_FAILED_SUBTEST = pytest.StashKey[str | None]()


class PhaseEnd(NamedTuple):
    """How a phase of a test ended on one rank and why, perhaps only because another rank failed."""

    outcome: Literal["passed", "failed", "skipped"]
    text: str
    is_consequence: bool


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what was measured where another plugin runs a test again that failed."""
    if OUTCOME in item.stash:
        del item.stash[OUTCOME]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Know while a test runs, which may be more than once."""
    item.stash[_IS_IN_CALL] = True
    item.stash[_FAILED_SUBTEST] = None
    try:
        return (yield)
    finally:
        item.stash[_IS_IN_CALL] = False


def is_over(item: pytest.Item, report: pytest.TestReport) -> bool:
    """Whether a report is of a phase that ended, and not of a subtest; a failed one is kept."""
    if not item.stash.get(_IS_IN_CALL, False):
        return True
    if report.failed and item.stash[_FAILED_SUBTEST] is None:
        item.stash[_FAILED_SUBTEST] = f"a subtest failed: {_text_of(report)}"
    return False


def end_of(item: pytest.Item, report: pytest.TestReport, error: Raised) -> PhaseEnd:
    """Return how a phase ended, which raised `error`; a call with a failed subtest did not pass."""
    outcome, text = report.outcome, _text_of(report)
    failed_subtest = item.stash.get(_FAILED_SUBTEST, None)
    if failed_subtest is not None and report.when == "call" and report.passed:
        outcome, text = "failed", failed_subtest
    return PhaseEnd(outcome=outcome, text=text, is_consequence=isinstance(error, LostRankError))


def line_of(item: pytest.Item, report: pytest.TestReport, error: Raised) -> CellLine:
    """Return what is kept of a cell that ended: `error` ended the phase of the report."""
    measured = item.stash.get(OUTCOME, None)
    times_s = recorder.times_of(item) if measured is None else measured.step_times_s
    end, reason = end_of(item, report, error), None
    if isinstance(error, NotExercisedError):
        reason = str(error)
    elif error is not None and not end.is_consequence:
        reason = f"{type(error).__name__}: {error}"
        if hasattr(report, "wasxfail") and not isinstance(error, pytest.xfail.Exception):
            reason = f"XFailed: {'; '.join(filter(None, [report.wasxfail, reason]))}"
    elif end.outcome != "passed":  # of a subtest, or on another rank
        reason = end.text
    elif not times_s:
        reason = "the test measured nothing"
    elif measured is not None and measured.missing:
        reason = "; ".join(f"no {name}: {why}" for name, why in sorted(measured.missing.items()))
    name, record = item.nodeid, None if measured is None else measured.record
    return CellLine(
        fullname=name, outcome=end.outcome, reason=reason, step_times_s=times_s, perfsuite=record
    )


def _text_of(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        return str(report.longrepr[2])
    return report.longreprtext
