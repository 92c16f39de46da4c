"""The fixtures of the plugin; what they need is imported when a test calls one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import pytest

from perfsuite.errors import PerfsuiteError, SettingError
from perfsuite.plugin import recorder

if TYPE_CHECKING:
    from perfsuite.plugin.session.measured_session import MeasuredSession
    from perfsuite.records.cell import CellLine, Outcome
    from perfsuite.records.equivalence import EquivalenceReport
    from perfsuite.records.recipe import Recipe
    from perfsuite.records.workload import Workload

_MEASURING = (
    *("train_benchmark", "loader_benchmark", "evaluation_benchmark", "all_reduce_benchmark"),
    *("step_benchmark", "loop_benchmark", "command_benchmark"),
)
_OTHERS = ("rank_group", "check_equivalence")

Measure = Callable[..., "Outcome"]

# Returns the session, which is made when the first test needs it.
RUNNER: pytest.StashKey[Callable[[], MeasuredSession]] = pytest.StashKey()
OUTCOME: pytest.StashKey[Outcome] = pytest.StashKey()


def is_cell(item: pytest.Item) -> bool:
    """Whether a test measures through one of these fixtures."""
    return any(_reaches_ours(item, name) for name in _MEASURING)


def uses_ranks(item: pytest.Item) -> bool:
    """Whether a test uses any of these fixtures."""
    return is_cell(item) or any(_reaches_ours(item, name) for name in _OTHERS)


def _reaches_ours(item: pytest.Item, name: str) -> bool:
    """Whether a fixture is ours, or overrides ours and is built on it."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get(name, ())
    for definition in reversed(found):
        if definition.func.__module__ == __name__:
            return True
        if name not in definition.argnames:
            return False
    return False


@pytest.fixture
def rank_group(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """Run `rank_group(num_ranks, function, *args)` on real ranks.

    The default process group is initialised in each rank. Returns the results in rank order; raises
    RankFailureError for the first failing rank, with its exit code or signal and its message.
    """
    return _packing_own_modules(request)(request.config.stash[RUNNER]().session.run_function)


@pytest.fixture
def check_equivalence(request: pytest.FixtureRequest) -> Callable[..., EquivalenceReport]:
    """Check the numerics alone: `check_equivalence(workload, recipe, *, num_steps=3)`.

    Returns an EquivalenceReport: assert its `is_equivalent`, or its `status`. Never skips: what
    this machine cannot exercise has the status "not exercised", with the reason.
    """
    return _packing_own_modules(request)(request.config.stash[RUNNER]().session.verify)


@pytest.fixture
def train_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure training steps: `train_benchmark(workload, recipe, *, rounds=None, iterations=None)`.

    First checks, once for all numbers of loader workers, that the recipe computes the same as one
    process; raises EquivalenceError, and times nothing, where it does not. Rounds go to
    pytest-benchmark, the record to its `extra_info`. Skips what this machine cannot exercise.
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
    cell = _Cell(request, benchmark)
    return partial(cell.record, cell.session.measure_all_reduce)


@pytest.fixture
def step_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure a training step of one's own: `step_benchmark(build_step, *, ranks=1)`.

    `build_step()` is called on every rank, with the default process group up, and returns a
    function that takes one step and returns its loss, or a `perfsuite.Step`. `samples_per_step` and
    `tokens_per_step` count those of all ranks; `rounds` and `iterations` are `train_benchmark`'s.
    `reference` is a `build_step` for one process, whose step takes what those of all ranks take
    together; the first three steps are held to it, within the rounding of `precision`.
    """
    cell = _Cell(request, benchmark)

    def measure(
        build_step: Callable[[], Any],
        *,
        ranks: int = 1,
        rounds: int | None = None,
        iterations: int | None = None,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        reference: Callable[[], Any] | None = None,
        precision: str = "fp32",
    ) -> Outcome:
        return cell.record(
            cell.session.measure_user_code,
            build_step,
            kind="step",
            checks_numerics=cell.runner.choices.checks_numerics,
            reference=reference,
            precision=precision,
            world_size=ranks,
            num_rounds=rounds,
            num_iterations=iterations,
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
        )

    measure.__qualname__ = "step_benchmark"  # in Python's messages about its arguments
    return measure


@pytest.fixture
def loop_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure a training loop as it is: `loop_benchmark(train, *, ranks=1, steps, warmup=10)`.

    `train()` is called on every rank as torchrun would have it, so that it makes its own process
    group. A step ends where the first optimizer that steps has stepped, or one of the class that
    `optimizer` names, or where the loop calls `perfsuite.step_done()`. After `warmup` and `steps`
    steps, and two more, the loop is ended by `perfsuite.StopLoop`.
    """
    cell = _Cell(request, benchmark)

    def measure(
        train: Callable[[], object],
        *,
        ranks: int = 1,
        steps: int,
        warmup: int = 10,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        optimizer: str | None = None,
    ) -> Outcome:
        return cell.record(
            cell.session.measure_user_code,
            train,
            kind="loop",
            world_size=ranks,
            num_steps=steps,
            num_warmup=warmup,
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
            optimizer=optimizer,
        )

    measure.__qualname__ = "loop_benchmark"
    return measure


@pytest.fixture
def command_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> Measure:
    """Measure a command as it is: `command_benchmark(["torchrun", "train.py"], steps=40)`.

    Its ranks are the processes where an optimizer of torch steps; where a step ends, and when
    the command does, is as in `loop_benchmark`. It runs in `cwd` below pytest's rootdir, with the
    variables of `env` too. The cell's workload is `name`, else the first file in the command.
    `metrics` says where it logs the times of its steps, if it must not be touched at all.
    """
    cell = _Cell(request, benchmark)

    def measure(
        command: Sequence[str],
        *,
        steps: int,
        warmup: int = 10,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        optimizer: str | None = None,
        metrics: str | None = None,
        name: str | None = None,
    ) -> Outcome:
        from perfsuite.experiments.user_code import plan_launch

        return cell.record(
            cell.session.measure_command,
            plan_launch(command, root=request.config.rootpath, cwd=cwd, env=env, name=name),
            metrics=metrics,
            num_steps=steps,
            num_warmup=warmup,
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
            optimizer=optimizer,
        )

    measure.__qualname__ = "command_benchmark"
    return measure


def _measuring(
    request: pytest.FixtureRequest, benchmark: Any, activity: Literal["train", "load", "evaluate"]
) -> Measure:
    from perfsuite.experiments import compared_cell
    from perfsuite.records.recipe import Recipe

    cell = _Cell(request, benchmark)

    def measure(
        workload: str | Workload,
        recipe: Recipe,
        *,
        rounds: int | None = None,
        iterations: int | None = None,
    ) -> Outcome:
        if isinstance(recipe, Recipe) and request.path != Path(compared_cell.__file__):
            recipe.require_own_loader()
        return cell.record(
            cell.session.measure_cell,
            workload,
            recipe,
            activity=activity,
            num_rounds=rounds,
            num_iterations=iterations,
            checks_numerics=cell.runner.choices.checks_numerics,
        )

    return measure


class _Cell:
    """A test that was collected as a cell, what measures it, and where its times are recorded."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any) -> None:
        self._request, self._benchmark = request, benchmark
        self.runner = request.config.stash[RUNNER]()
        if not is_cell(item := request.node):
            recorder.expect_no_record(benchmark)
            found = f"{item.nodeid} takes {request.fixturename!r} from request.getfixturevalue"
            why = "which cannot be seen before it runs; name the fixture among its arguments"
            raise SettingError(f"{found}, {why}")
        self.session = self.runner.session

    def record(self, measure: Measure, *args: Any, **how: Any) -> Outcome:
        """Return what `measure(*args, **how, is_timed=...)` finds, and have it recorded."""
        import msgspec

        item, benchmark = self._request.node, self._benchmark
        if OUTCOME in item.stash:
            why = "a test has one place to store its times; parametrize the test, or write another"
            raise SettingError(f"{item.nodeid} has measured a cell already, and {why}")
        if (outcome := finished_outcome(self.runner.finished, item.nodeid)) is None:
            with _packing_own_modules(self._request):
                outcome = measure(*args, **how, is_timed=recorder.is_recorded(item))
        benchmark.extra_info["perfsuite"] = msgspec.to_builtins(outcome.record)
        recorder.replay(benchmark, outcome.step_times_s, item.stash[recorder.CLOCK])
        item.stash[OUTCOME] = outcome
        return outcome


def finished_outcome(finished: Mapping[str, CellLine], name: str) -> Outcome | None:
    """Return what was measured of a cell before the restart; a PerfsuiteError where it failed."""
    from perfsuite.records.cell import Outcome

    if (line := finished.get(name)) is None:
        return None
    if (record := line.perfsuite) is None:
        found = "failed before torchrun started the ranks again, and is not run twice"
        raise PerfsuiteError(f"{found}: {line.reason}")
    return Outcome(step_times_s=line.step_times_s, num_iterations=None, record=record, missing={})


@contextmanager
def _packing_own_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send what is in the test's module and in conftests as it is: ranks cannot import those."""
    from perfsuite.ranks.pickling import packed_by_value

    plugins = request.config.pluginmanager.get_plugins()
    modules = (plugin for plugin in plugins if isinstance(plugin, ModuleType))
    conftests = [one for one in modules if one.__name__.rpartition(".")[2] == "conftest"]
    test = request.node.getparent(pytest.Module)  # none of a command, which is in no file
    with packed_by_value([*([] if test is None else [test.obj]), *conftests]):
        yield
