"""The fixtures of the plugin: what a test calls to measure, to prove, and to run ranks.

Must not know options, hooks or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal, Protocol

import pytest

from perfsuite.errors import SettingError
from perfsuite.experiments.rank_session import Session
from perfsuite.plugin import recorder
from perfsuite.plugin.resume import finished_outcome
from perfsuite.records.cell import CellLine, Outcome, to_plain
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload

_MEASURING_FIXTURES = (
    "train_benchmark",
    "loader_benchmark",
    "evaluation_benchmark",
    "all_reduce_benchmark",
)

Measure = Callable[..., Outcome]


class HasSession(Protocol):
    """What the fixtures need of the plugin."""

    @property
    def session(self) -> Session:
        """What runs cells."""

    @property
    def checks_numerics(self) -> bool:
        """Whether cells are checked before they are timed."""

    @property
    def finished(self) -> Mapping[str, CellLine]:
        """Cells that need no second run, by node id."""


SUITE = pytest.StashKey[HasSession]()
OUTCOME = pytest.StashKey[Outcome]()


def is_cell(item: pytest.Item) -> bool:
    """Whether a test measures through one of these fixtures."""
    names = getattr(item, "fixturenames", ())
    return any(name in names for name in _MEASURING_FIXTURES)


@pytest.fixture
def rank_group(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Run `rank_group(num_ranks, function, *args)` on real ranks.

    The default process group is initialised in each rank. Returns the results in rank order; raises
    RankFailureError for the first failing rank, with its exit code or signal and its message.
    """
    session = request.config.stash[SUITE].session
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
    session = request.config.stash[SUITE].session
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
    suite = request.config.stash[SUITE]

    def measure(parallel: str, message_bytes: int) -> Outcome:
        _refuse_a_second_cell(request.node)
        outcome = finished_outcome(suite.finished, request.node.nodeid)
        if outcome is None:
            is_timed = recorder.is_recorded(request.node)
            outcome = suite.session.measure_all_reduce(parallel, message_bytes, is_timed=is_timed)
        _record(request.node, benchmark, outcome)
        return outcome

    return measure


def _measuring(
    request: pytest.FixtureRequest, benchmark: Any, activity: Literal["train", "load", "evaluate"]
) -> Measure:
    suite = request.config.stash[SUITE]
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
        outcome = finished_outcome(suite.finished, request.node.nodeid)
        if outcome is not None:
            _record(request.node, benchmark, outcome)
            return outcome
        numerics = None
        if activity == "train" and suite.checks_numerics:
            numerics = session.require_equivalence(workload, recipe, by_value=by_value).numerics
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
    if OUTCOME in item.stash:
        raise SettingError(
            f"{item.nodeid} has measured a cell already, and a test has one place to store its "
            "times; parametrize the test, or write another"
        )


def _record(item: pytest.Item, benchmark: Any, outcome: Outcome) -> None:
    benchmark.extra_info["perfsuite"] = to_plain(outcome.record)
    recorder.replay(benchmark, outcome.step_times_s, recorder.clock_of(item))
    item.stash[OUTCOME] = outcome


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
