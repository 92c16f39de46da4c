"""A user's step and loop in this process: a measurement whose clock the code under test moves."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import perfsuite
from perfsuite.errors import NonFiniteError, PerfsuiteError, WorkloadError
from perfsuite.ranks.messages import RoundTimes, UserCode
from perfsuite.records.stages import STAGES, untimed
from perfsuite.worker.jobs.user_code import UserLoop, UserStep
from perfsuite.worker.measure.iterations import Iterations
from perfsuite.worker.measure.rounds import measure_rounds
from perfsuite.worker.measure.stages import StageClock

PLANTED_S = 0.050
TRAINED = ("load", "forward", "backward", "optimizer")


class WorkClock:
    """A clock that work moves, and nothing else."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


class _Operators(TorchDispatchMode):
    """Keeps the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(str(func))
        return func(*args, **(kwargs or {}))


class Rounds:
    """A measurement of two rounds of three steps, between which the other arm has its turn."""

    def __init__(self, clock: WorkClock) -> None:
        self.times: list[RoundTimes] = []
        self.asked = measure_rounds(
            self.times,
            num_rounds=2,
            num_iterations=3,
            stages=StageClock(torch.device("cpu"), clock=clock),
            start_together=lambda: clock.work(1000.0),
            synchronize=lambda: None,
            after_round=lambda: clock.work(1000.0),
            clock=clock,
        )


def code(kind: Any, **fields: Any) -> UserCode:
    steps = {} if kind == "step" else {"num_steps": 6, "num_warmup": 2}
    return UserCode(name="mine", function=b"", kind=kind, **(steps | fields))


def make_step(work: Callable[[str], None] = lambda name: None) -> Callable[[], torch.Tensor]:
    """Return a step all of whose stages are marked; `work` is done in each."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        with perfsuite.stage("load"):
            work("load")
            inputs = torch.ones(3, 4)
        with perfsuite.stage("forward"):
            work("forward")
            loss = model(inputs).square().mean()
        with perfsuite.stage("backward"):
            work("backward")
            optimizer.zero_grad()
            loss.backward()
        with perfsuite.stage("optimizer"):
            work("optimizer")
            optimizer.step()
        return loss

    return step


def run_loop(train: Callable[[], object], asked: Iterations[None], **fields: Any) -> UserLoop:
    loop = UserLoop(code(**{"kind": "loop", **fields}), train, None)
    loop.run(asked, lambda: None)
    return loop


def ask(num: int, seen: list[int] | None = None) -> Iterations[None]:
    """Ask for so many iterations; `seen` gets a number as each begins."""
    for number in range(num):
        if seen is not None:
            seen.append(number)
        yield untimed


@pytest.mark.parametrize("slow", TRAINED)
@pytest.mark.parametrize("kind", ["step", "loop"])
def test_a_delay_is_in_the_stage_that_the_user_marked_around_it(kind: str, slow: str) -> None:
    clock = WorkClock()
    step = make_step(lambda name: clock.work(PLANTED_S if name == slow else 0.001))
    rounds = Rounds(clock)

    if kind == "step":
        UserStep(code("step"), lambda: step).run(rounds.asked, lambda: None)
    else:
        run_loop(lambda: [step() for _ in range(99)], rounds.asked)

    # The stages of a loop's step are those from one optimizer step to the next: all four.
    expected = {name: 3 * (PLANTED_S if name == slow else 0.001) for name in TRAINED}
    assert len(rounds.times) == 2
    for times in rounds.times:
        assert times.stages_s == pytest.approx(expected)
        assert times.duration_s == pytest.approx(sum(expected.values()))


def test_a_stage_is_free_where_nobody_measures_and_another_thread_has_none() -> None:
    with perfsuite.stage("no such stage"):
        perfsuite.log_loss(object())
        perfsuite.step_done()
    clock = WorkClock()
    rounds = Rounds(clock)

    def prefetch() -> None:
        with perfsuite.stage("load"):
            clock.work(1.0)

    def step() -> None:
        thread = threading.Thread(target=prefetch)
        with perfsuite.stage("forward"):
            thread.start()
            thread.join()

    UserStep(code("step"), lambda: step).run(rounds.asked, lambda: None)

    assert [times.stages_s for times in rounds.times] == [{"forward": 3.0}] * 2


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (
            ["evaluate"],
            "stage 'evaluate' is not known; use one of load, forward, backward, optimizer, "
            "evaluation",
        ),
        (
            ["forward", "load"],
            "stage 'load' was entered inside of stage 'forward'; stages do not nest, so leave "
            "'forward' first",
        ),
    ],
)
def test_a_wrong_stage_is_refused_in_one_sentence(names: list[str], error: str) -> None:
    def step(remaining: tuple[str, ...] = tuple(names)) -> None:
        if remaining:
            with perfsuite.stage(remaining[0]):
                step(remaining[1:])

    with pytest.raises(PerfsuiteError) as raised:
        UserStep(code("step"), lambda: step).run(Rounds(WorkClock()).asked, lambda: None)

    assert str(raised.value) == error
    assert len(STAGES) == 5


def test_the_loop_ends_after_the_last_step_that_is_asked_for_and_may_clean_up() -> None:
    step, told, begun = make_step(), [], []

    def train() -> None:
        try:
            for number in range(99):
                told.append(number)
                step()
        except ZeroDivisionError:
            pass
        finally:
            told.append("closed")

    loop = run_loop(train, ask(4, begun))

    # The first step ends where the first iteration begins.
    assert (told, begun) == ([0, 1, 2, 3, 4, "closed"], [0, 1, 2, 3])
    assert loop.end(num_rounds=2) == {}


def test_the_first_optimizer_that_steps_counts_or_the_one_that_is_named() -> None:
    weight = nn.Parameter(torch.ones(2))
    adam, sgd = torch.optim.Adam([weight]), torch.optim.SGD([weight])

    def train() -> int:
        for number in range(99):
            weight.grad = torch.ones(2)
            adam.step()
            if number % 3 == 2:
                sgd.step()
            perfsuite.step_done()  # the optimizer has ended the step
        return 0

    def num_steps(**fields: Any) -> int:
        stepped: list[int] = []
        run_loop(train, ask(1000, stepped), **fields)
        return len(stepped)

    assert (num_steps(), num_steps(optimizer="SGD")) == (99, 33)


def test_an_optimizer_that_steps_one_group_after_another_ends_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", sys)
    decayed, free = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    adam = torch.optim.AdamW([{"params": [decayed]}, {"params": [free], "weight_decay": 0.0}])

    def train() -> None:
        groups = adam.param_groups
        for _ in range(30):
            decayed.grad, free.grad = torch.ones(2), torch.ones(2)
            for group in groups:  # as DeepSpeed's ZeRO does
                adam.param_groups = [group]
                adam.step()
            adam.param_groups = groups

    stepped: list[int] = []
    run_loop(train, ask(1000, stepped))

    assert len(stepped) == 30


def test_an_optimizer_that_steps_in_the_backward_pass_ends_steps_and_is_not_counted() -> None:
    model = nn.Linear(4, 2)
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, its=optimizer: its.step())
    begun = 0

    def train() -> None:
        nonlocal begun
        for _ in range(99):
            begun += 1
            model(torch.ones(3, 4)).square().mean().backward()

    loop = UserLoop(code("loop"), train, None)

    def count_operators() -> Iterations[None]:
        for number in range(6):
            with _Operators() if number > 3 and loop.is_counted else contextlib.nullcontext():
                yield untimed

    loop.run(count_operators(), lambda: None)

    assert begun == 7
    assert set(loop.end(2).values()) == {
        "its optimizer steps within the backward pass, or each step has a thread of its own, "
        "where operators cannot be watched"
    }


def test_a_loop_whose_steps_each_have_a_thread_is_not_counted() -> None:
    step = make_step()

    def train() -> None:
        for _ in range(7):
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()

    loop = run_loop(train, ask(99))

    assert not loop.is_counted
    assert run_loop(lambda: [step() for _ in range(7)], ask(99)).is_counted


def test_many_optimizers_may_step_between_two_steps_of_the_one_that_counts() -> None:
    weights = [nn.Parameter(torch.ones(1)) for _ in range(400)]
    optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in weights]

    def train() -> None:
        for _ in range(99):
            for optimizer in optimizers:
                optimizer.step()

    begun: list[int] = []
    run_loop(train, ask(6, begun))

    assert begun == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [SystemExit(1), OSError("the tracker is gone")])
def test_a_loop_that_was_measured_may_clean_up_as_it_likes(error: BaseException) -> None:
    step = make_step()

    def train() -> None:
        try:
            for _ in range(99):
                step()
        finally:
            raise error

    assert run_loop(train, ask(4)).end(2) == {}


def test_frozen_weights_of_any_dtype_have_no_digest() -> None:
    weight, frozen = nn.Parameter(torch.ones(2)), torch.ones(4, dtype=torch.uint8)
    sgd = torch.optim.SGD([weight], lr=0.1)
    sgd.param_groups[0]["params"].append(frozen)  # as of a quantized model

    def train() -> None:
        for _ in range(9):
            weight.grad = torch.ones(2)
            sgd.step()

    loop = UserLoop(code("loop"), train, None, digests_weights=True)
    loop.run(ask(4), lambda: None)

    assert {step: len(digests) for step, digests in loop.digests().items()} == {1: 1, 2: 1, 5: 1}


def test_a_step_tells_the_weights_after_each_of_its_warm_up_and_after_its_last() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)  # within another step, of the same optimizer

    model = nn.Linear(4, 2)
    optimizers = [Counting([one], lr=0.1) for one in model.parameters()]

    def step() -> None:
        model(torch.ones(3, 4)).square().mean().backward()
        for one in optimizers:
            one.step()

    told = []
    for asks in (True, False):
        mine = UserStep(code("step"), lambda: step, digests_weights=asks)

        def asked(mine: UserStep = mine) -> Iterations[None]:
            for number in range(5):
                yield untimed
                if number < 3:
                    mine.check()
                    mine.check()  # as for buffers: no step since

        mine.run(asked(), lambda: None)
        mine.check()
        mine.end(2)
        told.append(mine.digests())

    assert {step: len(digests) for step, digests in told[0].items()} == {1: 2, 2: 2, 3: 2, 5: 2}
    assert len({digests[0].squares for digests in told[0].values()}) == 4
    assert told[1] == {}


def test_the_weights_of_an_optimizer_that_the_user_names_are_told_before_it_steps() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = UserStep(
        code("step"), lambda: perfsuite.Step(lambda: None, model, optimizer), digests_weights=True
    )
    mine.run(ask(1), lambda: None)
    mine.check()

    assert [one.num_elements for one in mine.digests()[1]] == [8, 2]


def test_a_numpy_number_is_a_loss() -> None:
    step = UserStep(code("step"), lambda: lambda: np.float32(0.5))

    assert step.take() == 0.5


def test_an_optimizer_that_trains_one_block_after_another_ends_each_step() -> None:
    blocks = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    sgd = torch.optim.SGD(blocks)

    def train() -> None:
        for number in range(30):
            sgd.param_groups[0]["params"] = [blocks[number % 3]]
            sgd.step()

    stepped: list[int] = []
    run_loop(train, ask(1000, stepped))

    assert len(stepped) == 30


def test_a_step_that_calls_that_of_its_base_class_is_one_step() -> None:
    class Mine(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            return super().step()

    seen: list[int] = []

    def train() -> None:
        parameter = nn.Parameter(torch.ones(1))
        torch.optim.SGD([parameter])  # has torch hook the base class's step too
        mine = Mine([parameter], lr=0.1)
        for number in range(9):
            with contextlib.suppress(ZeroDivisionError):
                mine.step(lambda number=number: 1 / (number != 2))
            seen.append(number)

    loop = run_loop(train, ask(5))

    assert loop.end(2) == {}
    # The third raised; the loop's first step is not measured, and its sixth has ended it.
    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_loop_without_an_optimizer_says_where_its_steps_end() -> None:
    begun: list[int] = []

    run_loop(lambda: [perfsuite.step_done() for _ in range(99)], ask(6, begun))

    assert begun == [0, 1, 2, 3, 4, 5]


def test_a_step_that_ends_by_step_done_may_have_as_many_optimizer_steps_as_any_other() -> None:
    weight = nn.Parameter(torch.ones(1))
    sgd = torch.optim.SGD([weight], lr=0.1)

    def train() -> None:
        for _ in range(99):
            perfsuite.step_done()
            for _ in range(50):
                sgd.step()

    begun: list[int] = []
    run_loop(train, ask(9, begun))

    assert begun == [*range(9)]


def test_losses_are_read_when_a_round_has_ended_and_the_last_of_a_step_counts() -> None:
    step, losses = make_step(), iter(range(99))

    def telling() -> None:
        perfsuite.log_loss(-1.0)
        told = torch.tensor([float(next(losses))], requires_grad=True)
        perfsuite.log_loss(told)
        with torch.no_grad():
            told += 100.0  # as a running sum does
        step()

    loop = run_loop(lambda: [telling() for _ in range(99)], ask(40))
    assert loop.losses.by_step() is None
    loop.check()

    steps = [*range(1, 11), 16, 32, 41]
    assert loop.losses.by_step() == {step: step - 1.0 for step in steps}


def test_a_loss_on_a_cpu_is_read_without_a_copy() -> None:
    loss = torch.tensor(0.5, requires_grad=True)
    step = UserStep(code("step"), lambda: lambda: loss)

    with _Operators() as operators:
        told = step.take()

    assert (told, operators.called) == (0.5, ["aten._local_scalar_dense.default"])


def test_a_compiled_step_tells_its_loss_in_one_graph() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def step(inputs: torch.Tensor) -> None:
        perfsuite.log_loss(inputs.mean())

    telling = UserStep(code("step"), lambda: lambda: step(torch.ones(3)))

    assert telling.take() == 1.0


@pytest.mark.parametrize(
    ("told", "kind", "error"),
    [
        (
            "0.5",
            WorkloadError,
            "mine: a step's loss is '0.5'; give a single number, returned alone or told by "
            "perfsuite.log_loss",
        ),
        (
            torch.ones(2, 1),
            WorkloadError,
            "mine: a step's loss is of shape (2, 1); give a single number, returned alone or told "
            "by perfsuite.log_loss",
        ),
        (
            float("nan"),
            NonFiniteError,
            "the loss is nan at step 1; lower the learning rate, clip gradients, or use a "
            "precision with more range",
        ),
    ],
)
def test_a_loss_that_is_none_is_refused(told: Any, kind: type[Exception], error: str) -> None:
    step = UserStep(code("step"), lambda: lambda: told)

    def take_and_check() -> None:
        step.run(ask(1), lambda: None)
        step.check()

    with pytest.raises(kind) as raised:
        take_and_check()

    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("keeps", "named", "error"),
    [
        (True, "Adamw", "mine: no Adamw stepped in the loop (optimizer=), but SGD did"),
        (
            False,
            None,
            "mine: the optimizer that ends its steps stepped 1 time and no more, while others "
            "went on; keep one for the whole loop, or name the class of one that steps throughout "
            "(optimizer=)",
        ),
    ],
)
def test_an_endless_loop_whose_steps_have_no_end_is_ended(
    keeps: bool, named: str | None, error: str
) -> None:
    step = make_step()

    def train() -> None:
        while True:
            (step if keeps else make_step())()

    with pytest.raises(WorkloadError) as raised:
        run_loop(train, ask(9), optimizer=named)

    assert str(raised.value) == error


def _generator() -> Any:
    yield


async def _coroutine() -> None:
    pass


@pytest.mark.parametrize(("train", "kind"), [(_generator, "a generator"), (_coroutine, "an async")])
def test_what_only_begins_when_it_is_asked_is_no_loop(train: Any, kind: str) -> None:
    with pytest.raises(WorkloadError) as raised:
        run_loop(train, ask(9))

    assert str(raised.value) == (
        f"mine is {kind} function, so nothing has run; give a function that runs the whole loop"
    )


def test_what_a_measurement_raises_reaches_no_handler_of_the_loop() -> None:
    step = make_step()

    def fail() -> Iterations[None]:
        yield untimed
        raise PerfsuiteError("too warm")

    def train() -> None:
        while True:
            try:
                step()
            except PerfsuiteError:
                continue

    with pytest.raises(PerfsuiteError, match="too warm"):
        run_loop(train, fail())


def test_a_step_is_a_function_or_says_what_it_holds() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    step = UserStep(code("step"), lambda: perfsuite.Step(lambda: None, model, optimizer))

    assert {id(one) for one in step.held_tensors()} == {id(one) for one in model.parameters()}
    with pytest.raises(WorkloadError) as raised:
        UserStep(code("step"), lambda: 3)
    assert str(raised.value) == (
        "mine returned 3; return the function that takes one step, or "
        "perfsuite.Step(run, model, optimizer)"
    )


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (
            perfsuite.Step(int, model=[3], optimizer=None),
            "mine: Step.model is of the type list; give an nn.Module, or None",
        ),
        (
            perfsuite.Step(int, model=None, optimizer=[4]),
            "mine: Step.optimizer is of the type list; give one optimizer, or None: others are "
            "seen to step",
        ),
    ],
)
def test_a_step_that_names_several_models_or_optimizers_is_refused_before_it_is_taken(
    step: perfsuite.Step, error: str
) -> None:
    with pytest.raises(WorkloadError) as raised:
        UserStep(code("step"), lambda: step)

    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("train", "fields", "error"),
    [
        (
            lambda: None,
            {},
            "mine: no torch optimizer stepped in the loop; call perfsuite.step_done() at the end "
            "of each step",
        ),
        (
            lambda: make_step()(),
            {"optimizer": "AdamW"},
            "mine: no AdamW stepped in the loop (optimizer=), but SGD did",
        ),
        (
            lambda: make_step()(),
            {"optimizer": "AdamW", "kind": "command"},
            "mine: no AdamW stepped in the command (optimizer=), but SGD did",
        ),
        (
            lambda: [perfsuite.step_done() for _ in range(3)],
            {},
            "mine: the loop ended by itself after 3 steps, too few for two rounds after 2 to warm "
            "up; let it take more, also when resumed, or ask for fewer (warmup=, steps=)",
        ),
    ],
)
def test_a_loop_with_too_few_steps_fails_in_one_sentence(
    train: Callable[[], object], fields: dict[str, Any], error: str
) -> None:
    loop = run_loop(train, ask(9), **fields)

    with pytest.raises(WorkloadError) as raised:
        loop.end(num_rounds=1)

    assert str(raised.value) == error


def test_a_loop_that_ends_before_it_is_counted_says_so() -> None:
    loop = run_loop(lambda: [perfsuite.step_done() for _ in range(8)], ask(9))

    missing = loop.end(num_rounds=2)

    assert set(missing.values()) == {
        "the loop ended by itself after 8 steps, before the two that are counted"
    }
    assert {"flops", "memory", "operators"} <= missing.keys()


@pytest.mark.parametrize(("num_warmup", "num_told"), [(2, 2), (3, 3), (10, 3)])
def test_weights_are_told_after_the_first_steps_that_are_not_timed_and_after_the_last(
    num_warmup: int, num_told: int
) -> None:
    other = nn.Parameter(torch.zeros(3))
    later = torch.optim.Adam([other])

    def train() -> None:
        step = make_step()
        while True:
            step()
            if other.grad is None:
                other.grad = torch.ones(3)
            later.step()

    loops = [
        UserLoop(code("loop", num_warmup=num_warmup), train, None, digests_weights=asked)
        for asked in (True, False)
    ]
    for loop in loops:
        torch.manual_seed(0)
        loop.run(ask(12), lambda: None)

    told = loops[0].digests()
    assert [*told] == [*range(1, num_told + 1), 13]
    # The other optimizer has not stepped when the first step ends.
    assert [[digest.num_elements for digest in step] for step in told.values()] == [
        [8, 2],
        *[[8, 2, 3]] * num_told,
    ]
    assert len({digest.squares for step in told.values() for digest in step[:1]}) == num_told + 1
    assert loops[1].digests() == {}


def test_a_step_is_taken_without_a_measurement_and_tells_its_loss() -> None:
    def telling() -> None:
        perfsuite.log_loss(0.5)

    assert UserStep(code("step"), lambda: telling).take() == 0.5
    assert UserStep(code("step"), lambda: lambda: torch.tensor([2.0])).take() == 2.0
    assert UserStep(code("step"), lambda: lambda: None).take() is None


class OtherRank:
    """Another rank, which has taken as many steps as this one, or fewer."""

    def __init__(self, num_fewer: int = 0) -> None:
        self._num_fewer = num_fewer

    def largest(self, values: list[float]) -> list[float]:
        *values, most, least = values
        return [*values, most, least + self._num_fewer]


def test_ranks_that_took_different_numbers_of_steps_fail_with_both() -> None:
    step = make_step()

    def run(other: OtherRank) -> None:
        loop = UserLoop(
            code("loop", world_size=2), lambda: [step() for _ in range(9)], other.largest
        )
        loop.run(ask(4), lambda: None)

    run(OtherRank())
    with pytest.raises(PerfsuiteError) as raised:
        run(OtherRank(num_fewer=2))

    assert str(raised.value) == (
        "mine: when one rank had taken 5 steps, another had taken only 3 and waited or ended; give "
        "all ranks equally many steps"
    )


def test_a_rank_that_ended_and_one_that_has_more_to_tell_fail_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store, errors = dist.HashStore(), {}

    def take_steps(rank: int, num_steps: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=30))
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX

        def largest(values: list[float]) -> list[float]:
            found = torch.tensor(values, dtype=torch.float64)
            group.allreduce([found], options).wait()
            return found.tolist()

        def warm_up_and_agree() -> Iterations[None]:
            yield from ask(4)
            loop.largest_over_ranks([0.5], torch.device("cpu"))

        loop = UserLoop(code("loop"), lambda: None, largest)
        loop.begin(warm_up_and_agree(), lambda: None)
        try:
            with contextlib.suppress(perfsuite.StopLoop):
                for _ in range(num_steps):
                    loop.step_done()
            loop.finish()
        except PerfsuiteError as error:
            errors[rank] = str(error)

    ranks = [threading.Thread(target=take_steps, args=one) for one in ((0, 3), (1, 9))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()

    assert [errors[rank] for rank in (0, 1)] == [
        "mine: when one rank had taken 5 steps, another had taken only 3 and waited or ended; give "
        "all ranks equally many steps"
    ] * 2


def test_a_rank_that_waits_for_others_after_its_own_last_step_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(_: Any) -> list[float]:
        raise RuntimeError("Timed out waiting 30000ms for recv operation to complete")

    monkeypatch.setenv("RANK", "1")
    loop = UserLoop(code("loop"), lambda: None, never)
    loop.begin(ask(9), lambda: None)
    for _ in range(3):
        loop.step_done()

    with pytest.raises(PerfsuiteError) as raised:
        loop.finish()

    assert str(raised.value) == (
        "mine: after 3 steps rank 1 ended by itself, and another went on; give all ranks equally "
        "many steps"
    )
