"""A whole cell on a stand-in accelerator: a CPU whose events and allocator the test knows."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from perfsuite.errors import WorkloadError
from perfsuite.ranks.assignments import all_assignments
from perfsuite.ranks.messages import (
    CellMeasured,
    GroupPolicy,
    GroupRequest,
    MeasurePlan,
    RankStart,
    RunCell,
)
from perfsuite.ranks.progress import Board
from perfsuite.ranks.turns import Agreed
from perfsuite.records.stages import Stage, untimed
from perfsuite.worker.jobs import cell
from perfsuite.worker.jobs.activities import Repeatable
from perfsuite.worker.jobs.arm_turns import ArmTurns
from perfsuite.worker.measure import rounds
from perfsuite.worker.measure.dispatch import StepMode
from perfsuite.worker.measure.stages import StageClock, StageMarks

CPU = torch.device("cpu")
NUM_ROUNDS, NUM_STAGE_ROUNDS, NUM_ITERATIONS = 5, 3, 8
SCALES = [2**16, 2**15, 2**14, 2**13]


class Steps(Repeatable):
    """Steps without work; the first ones are skipped for their loss scale."""

    is_counted = False

    def __init__(self) -> None:
        super().__init__()
        self.num_done = 0

    def iterate(self, stage: Stage) -> None:
        with stage("forward"):
            self.num_done += 1

    def state(self) -> object:
        return SCALES[min(self.num_done, len(SCALES)) - 1]


class Event:
    """One of the device, which is always done."""

    num_recorded = 0

    def record(self) -> None:
        Event.num_recorded += 1

    def elapsed_time(self, end: Event) -> float:
        return 16.0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    @contextmanager
    def start_activity(*_: Any) -> Iterator[Steps]:
        yield activity

    activity = Steps()
    monkeypatch.setattr(cell, "start_activity", start_activity)
    return activity


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = iter([2, 5])
    monkeypatch.setattr(Event, "num_recorded", 0)
    monkeypatch.setattr(cell, "is_accelerator", lambda _: True)
    for kind in (StageClock, StageMarks):
        on_device = partial(kind, torch.device("cuda"), make_event=lambda _: Event())
        new = lambda _, on_enter, on_device=on_device: on_device(on_enter=on_enter)  # noqa: E731
        monkeypatch.setattr(cell, kind.__name__, new)
    monkeypatch.setattr(cell, "memory_stats", lambda _: {"num_alloc_retries": next(retries)})
    joules = iter([1000.0, 1045.0])
    monkeypatch.setattr(cell, "read_energy", lambda index: (f"GPU-{index}", next(joules)))
    monkeypatch.setattr(rounds, "collection_s", lambda _: 0.0)  # another test left garbage
    monkeypatch.setattr(rounds, "_LEAST_WARM_UP_S", 0.0)  # its clock need not rise
    monkeypatch.setattr(rounds, "_STEADY", float("inf"))


def measure(folder: Path, round_s: float = 1e-9) -> CellMeasured:
    plan = MeasurePlan(num_rounds=NUM_ROUNDS, round_s=round_s)
    job = RunCell(activity="train", plan=plan)
    return cell.run_cell(job, started(folder, job), CPU, Board(folder / "progress", 1).writer(0))


def started(folder: Path, job: RunCell) -> RankStart:
    request = GroupRequest(job=job, world_size=1, policy=GroupPolicy(), needs_group=False)
    (assignment,) = all_assignments(1, device="cpu", num_gpus=0)
    return RankStart(
        request=request, assignment=assignment, folder=str(folder), core=None, cores=(0,)
    )


@pytest.mark.usefixtures("accelerator")
def test_rounds_of_an_accelerator_hold_no_event_of_a_stage_and_let_the_host_run_ahead(
    tmp_path: Path, steps: Steps
) -> None:
    measured = measure(tmp_path)

    assert measured.num_iterations == NUM_ITERATIONS
    expected = (pytest.approx(NUM_ITERATIONS * 0.016), {})
    assert [(one.duration_s, one.stages_s) for one in measured.rounds] == [expected] * NUM_ROUNDS
    assert [list(one.stages_s) for one in measured.stage_rounds] == [["forward"]] * NUM_STAGE_ROUNDS
    # Of the borders, and of one stage of each step in rounds of their own; and of the warm-up's.
    num_warm_up = len(SCALES) + 2
    of_borders = (NUM_ROUNDS + NUM_STAGE_ROUNDS) * (NUM_ITERATIONS + 1)
    of_stages = 2 * (NUM_STAGE_ROUNDS * NUM_ITERATIONS + num_warm_up)
    assert Event.num_recorded == of_borders + of_stages
    assert measured.counts.allocator_retries == 3
    # Of 5 rounds of 8 steps, each after one more.
    assert measured.energy_j == ("GPU-0", 45.0 / (NUM_ROUNDS * (NUM_ITERATIONS + 1)))
    # Three steps alike after the scale has settled, and one before each round.
    assert steps.num_done == num_warm_up + (NUM_ROUNDS + NUM_STAGE_ROUNDS) * (NUM_ITERATIONS + 1)


@pytest.mark.usefixtures("accelerator")
def test_a_round_on_an_accelerator_is_no_longer_for_batches_that_workers_loaded_ahead(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def iterate(_: Stage) -> None:
        steps.num_done += 1
        time.sleep(0.016 if steps.num_done % 4 == 0 else 0.0)

    monkeypatch.setattr(steps, "iterate", iterate)

    assert measure(tmp_path, round_s=0.064).num_iterations <= 16


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(("num_steps", "num_rounds"), [(18, 2), (20, 2), (40, 4), (99, 11)])
def test_a_loop_on_an_accelerator_has_as_long_rounds_as_any_cell(
    tmp_path: Path, steps: Steps, num_steps: int, num_rounds: int
) -> None:
    steps.num_steps = num_steps

    measured = measure(tmp_path)

    assert (measured.num_iterations, len(measured.rounds)) == (NUM_ITERATIONS, num_rounds)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("num_steps", [2, 17])
def test_a_loop_of_fewer_than_two_such_rounds_is_refused_in_one_sentence(
    tmp_path: Path, steps: Steps, num_steps: int
) -> None:
    steps.num_steps = num_steps

    with pytest.raises(WorkloadError) as raised:
        measure(tmp_path)

    assert str(raised.value) == (
        f"{num_steps} timed steps are too few for two rounds, which have 8 steps each on an "
        "accelerator, after an untimed one; ask for 18 or more (steps=)"
    )


@pytest.mark.usefixtures("accelerator")
def test_the_patience_of_collectives_leaves_out_how_far_the_host_runs_ahead(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_s: list[float] = []
    queued_s: list[float] = []

    def choose(iteration_s: float, **_: Any) -> int:
        taken_s.append(iteration_s)
        return NUM_ITERATIONS

    monkeypatch.setattr(cell.rounds, "choose_num_iterations", choose)
    monkeypatch.setattr(cell, "shorten_patience", lambda _, seconds: queued_s.append(seconds))

    measure(tmp_path)

    assert queued_s == [(NUM_ITERATIONS + 1) * taken_s[0]]


def test_a_cpu_has_its_stages_in_the_timed_rounds(tmp_path: Path, steps: Steps) -> None:
    measured = measure(tmp_path)

    assert measured.num_iterations == 1
    assert [list(one.stages_s) for one in measured.rounds] == [["forward"]] * NUM_ROUNDS
    assert measured.stage_rounds == []
    assert measured.counts.allocator_retries is None
    assert (measured.energy_j, measured.compile_s) == (None, None)
    assert steps.num_done == Steps.num_warmup + NUM_ROUNDS


@pytest.mark.usefixtures("accelerator")
def test_what_was_compiled_until_the_rounds_end_is_counted(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = {"graph_breaks": 2, "recompiles": 1}, 3.5
    monkeypatch.setattr(cell.counters, "read_compilation", lambda: compiled)

    measured = measure(tmp_path)

    counts = measured.counts
    assert (counts.graph_breaks, counts.recompiles, measured.compile_s) == (2, 1, 3.5)


@pytest.mark.parametrize(
    ("fixtures", "hidden"),
    [
        ([], {"flops", "model_flops", "ops", "memory", "saved_activation_bytes"}),
        (["accelerator"], {"flops", "model_flops", "ops", "kernel_launches"}),
    ],
)
def test_what_compiling_hides_depends_on_where_the_cell_runs_and_not_on_the_machine(
    tmp_path: Path,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    fixtures: list[str],
    hidden: set[str],
) -> None:
    # A command may train on the CPU of a machine with a GPU, and the other way round.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: not fixtures)
    # A part of a model may be, whatever the recipe says.
    monkeypatch.setattr(cell.counters, "read_compilation", lambda: ({}, 3.5))
    for fixture in fixtures:
        request.getfixturevalue(fixture)

    measured = measure(tmp_path)

    reasons = {name for name, why in measured.missing.items() if why.startswith("a compiled")}
    assert reasons == hidden


@pytest.mark.parametrize(
    ("has_hook", "records", "frees_late"),
    [(False, False, False), (True, False, True), (False, True, True)],
)
def test_memory_is_read_as_given_where_a_hook_or_the_training_lets_another_stream_use_it(
    tmp_path: Path,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    has_hook: bool,
    records: bool,
    frees_late: bool,
) -> None:
    asked: list[bool] = []
    measure_peak = cell.measure_peak

    def watch(*arguments: Any, frees_late: bool) -> Any:
        asked.append(frees_late)
        return measure_peak(*arguments)

    def iterate(stage: Stage) -> None:
        if records and (mode := _get_current_dispatch_mode()) is not None:
            mode.observe(torch.ops.aten.record_stream.default, (), {})

    monkeypatch.setattr(cell, "measure_peak", watch)
    monkeypatch.setattr(StepMode, "run", lambda *_: None)  # a CPU has no other stream
    monkeypatch.setattr(steps, "is_counted", True)
    monkeypatch.setattr(steps, "frees_late", has_hook)
    monkeypatch.setattr(steps, "iterate", iterate)

    measure(tmp_path)

    assert asked == [frees_late]


@pytest.mark.usefixtures("accelerator")
def test_memory_that_an_allocator_does_not_count_is_missing_and_the_time_is_there(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_nothing(*_: Any, **__: Any) -> Iterator[Any]:
        yield untimed

    monkeypatch.setattr(cell, "memory_stats", lambda _: {})
    monkeypatch.setattr(cell, "measure_peak", measure_nothing)
    monkeypatch.setattr(steps, "is_counted", True)

    measured = measure(tmp_path)

    assert len(measured.rounds) == NUM_ROUNDS
    assert (measured.peak, measured.counts.allocator_retries) == (None, None)
    reasons = {measured.missing[name] for name in ("memory", "saved_activation_bytes")}
    assert reasons == {"the accelerator's allocator is the user's own, and counts no memory"}


def test_a_step_that_runs_within_the_stage_load_alone_has_no_counts_of_zero(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def iterate(stage: Stage) -> None:
        with stage("load"):  # as where a generator marks it around its yield
            torch.ones(3).exp()

    monkeypatch.setattr(steps, "is_counted", True)
    monkeypatch.setattr(steps, "iterate", iterate)

    measured = measure(tmp_path)

    assert (measured.counts.flops, measured.counts.ops) == (None, None)
    assert measured.missing["ops"] == "no operator ran outside of the stage 'load'"


def test_model_flops_that_torch_has_no_formula_for_are_missing_and_not_fewer(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, inputs = torch.nn.LSTM(4, 8), torch.randn(5, 2, 4)
    monkeypatch.setattr(steps, "is_counted", True)
    monkeypatch.setattr(steps, "iterate", lambda stage: layer(inputs))

    measured = measure(tmp_path)

    assert (measured.counts.flops, measured.counts.model_flops) == (0, None)  # by the formulas
    why = "torch has no formula for the FLOPs of aten.mkldnn_rnn_layer"
    assert measured.missing["model_flops"] == why
    assert measured.counts.ops


@pytest.mark.parametrize("is_first_off", [True, False])
def test_an_arm_tells_the_gate_how_each_of_its_ranks_sets_the_collector(
    tmp_path: Path, is_first_off: bool
) -> None:
    class Gate:
        def agree(self, num_iterations: int, _: float, collector: list[float]) -> Agreed:
            told.append(collector)
            return Agreed(num_iterations, 5, collecting=True)

    def largest(values: list[float]) -> list[float]:
        if len(values) > len(Agreed._fields):  # of another rank, whose collector is the other way
            other = [float(is_first_off), *values[1:6], -float(is_first_off), *values[7:]]
            return [*map(max, values, other)]
        return values

    told: list[list[float]] = []
    start = started(tmp_path, RunCell(activity="train", plan=MeasurePlan()))
    turns = ArmTurns(start, on_wait=lambda: None)
    turns._first = Gate()  # type: ignore[assignment]
    try:
        if is_first_off:
            gc.disable()
        agreed = turns.agree(3, 0.01, largest)
    finally:
        gc.enable()

    assert agreed == Agreed(3, 5, collecting=True)
    (collector,) = told
    assert (collector[0], collector[6]) == (1, 0)
    assert collector[1:4] == [*gc.get_threshold()]
