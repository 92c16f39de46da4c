"""Does a cell's time say what happened? A known delay in one stage must be found, and there.

The delay is spun, not slept: a sleep overshoots by what the scheduler likes. The rest of the step
takes a hundredth of it or less.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import pytest

from perfsuite import Recipe, Workload

DELAY_S = 0.2
# On one of two ranks alone.
SHORT_DELAY_S = 0.05
# Of those with two ranks: one step in four ends 4 ms late, by chance, and the mean must be steady.
NUM_STEPS = 80
BATCH_SIZE = 4
ALLOWED_RATIO = 0.03

pytestmark = [pytest.mark.perf(matrix="full"), pytest.mark.usefixtures("on_a_cpu")]


def spin_on(only_on_rank: int | None, delay_s: float = DELAY_S) -> Any:
    """Return what takes some seconds on one rank, or on all of them."""

    def delay() -> None:
        import time

        import torch.distributed as dist

        rank = dist.get_rank() if dist.is_initialized() else 0  # a reference has no group
        if only_on_rank in (None, rank):
            end_s = time.perf_counter() + delay_s
            while time.perf_counter() < end_s:
                pass

    return delay


def delayed(stage: str, *, only_on_rank: int | None = None) -> Workload:
    """Return a tiny workload that takes `DELAY_S` longer in one stage."""
    delay = spin_on(only_on_rank)

    def build_model() -> Any:
        import torch
        from torch import nn

        class DelayedGradient(torch.autograd.Function):
            @staticmethod
            def forward(context: Any, outputs: Any) -> Any:
                return outputs.clone()

            @staticmethod
            def backward(context: Any, *gradients: Any) -> Any:
                delay()
                return gradients[0]

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(8, 2)

            def forward(self, inputs: Any) -> Any:
                if stage == "forward":
                    delay()
                outputs = self.linear(inputs)
                return DelayedGradient.apply(outputs) if stage == "backward" else outputs

        return Model()

    def build_dataset(split: str) -> Any:
        import torch
        from torch.utils.data import Dataset

        class Points(Dataset[Any]):
            def __init__(self) -> None:
                self.num_loaded = 0

            def __len__(self) -> int:
                return 4096

            def __getitem__(self, index: int) -> tuple[Any, int]:
                self.num_loaded += 1
                if stage == "load" and self.num_loaded % BATCH_SIZE == 0:
                    delay()
                return torch.full((8,), float(index % 7)), index % 2

        return Points()

    def build_optimizer(parameters: Any) -> Any:
        from torch.optim import SGD

        class DelayedSGD(SGD):
            def step(self, closure: Any = None) -> Any:
                if stage == "optimizer":
                    delay()
                return super().step(closure)

        return DelayedSGD(parameters, lr=1e-3)

    def loss(outputs: Any, targets: Any) -> Any:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets)

    return Workload(
        name=f"delayed-{stage}",
        build_model=build_model,
        build_dataset=build_dataset,
        loss=loss,
        build_optimizer=build_optimizer,
        micro_batch_size=BATCH_SIZE,
    )


def delayed_training(
    stage: str, *, only_on_rank: int | None = None, delay_s: float = DELAY_S
) -> tuple[Any, Any]:
    """Return a step of a user's own, built, and a loop of it, with the same delay in one stage."""
    delay = spin_on(only_on_rank, delay_s)

    def build_step() -> Any:
        import torch
        import torch.distributed as dist

        import perfsuite

        model: Any = torch.nn.Linear(8, 2)
        if dist.is_initialized():
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def in_stage(name: str, work: Any) -> Any:
            with perfsuite.stage(name):
                if name == stage:
                    delay()
                return work()

        def step() -> Any:
            batch = in_stage("load", lambda: torch.ones(BATCH_SIZE, 8))
            loss = in_stage("forward", lambda: model(batch).square().mean())
            in_stage("backward", loss.backward)
            in_stage("optimizer", optimizer.step)
            return loss

        return step

    def train() -> None:
        import os

        import torch.distributed as dist

        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        step = build_step()
        while True:
            step()

    return build_step, train


def train_by_hand(workload: Workload) -> None:
    """Train a workload with DDP as its author would, without an end."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    model = DistributedDataParallel(workload.build_model())
    optimizer = workload.build_optimizer(model.parameters())
    dataset = workload.build_dataset("train")
    assert dataset is not None
    while True:
        for inputs, target in DataLoader(dataset, batch_size=workload.micro_batch_size):
            optimizer.zero_grad()
            workload.loss(model(inputs), target).backward()
            optimizer.step()


def time_by_hand(train: Any, num_steps: int) -> float:
    """Return the seconds of a step of a loop as its own author would time it: the mean of all.

    Not their median: some waits of a rank for another end a tick of the kernel's scheduler late.
    """
    import time

    from torch.optim.optimizer import register_optimizer_step_post_hook

    import perfsuite

    borders_s: list[float] = []

    def note(*_: Any) -> None:
        borders_s.append(time.perf_counter())
        if len(borders_s) > num_steps + 2:
            raise perfsuite.StopLoop

    hook = register_optimizer_step_post_hook(note)
    try:
        train()
    except perfsuite.StopLoop:
        return (borders_s[-1] - borders_s[2]) / (len(borders_s) - 3)
    finally:
        hook.remove()
    raise AssertionError("the loop has no end")


def expect_slow_rank(outcome: Any, stage: str, by_hand_s: float) -> None:
    """Fail unless rank 1 is slow in one stage by its delay, and every other time is its own."""
    record = outcome.record
    assert statistics.fmean(outcome.step_times_s) == pytest.approx(by_hand_s, rel=ALLOWED_RATIO)
    for name, (first_s, second_s) in record.rank_stages_s.items():
        delay_s = SHORT_DELAY_S if name == stage else 0.0
        assert second_s - first_s == pytest.approx(delay_s, abs=ALLOWED_RATIO * SHORT_DELAY_S)
    assert record.slow_ranks[stage] == 1


def expect_delay(outcome: Any, stage: str) -> None:
    """Fail unless the delay is in the time and in its stage, and in no other."""
    times = outcome.record.stages_s
    assert statistics.median(outcome.step_times_s) == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)
    assert getattr(times, stage) == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)
    for other in {"load", "forward", "backward", "optimizer", "other"} - {stage}:
        assert getattr(times, other) < ALLOWED_RATIO * DELAY_S


@pytest.mark.parametrize("stage", ["load", "forward", "backward", "optimizer"])
def test_a_delay_is_found_in_its_stage(train_benchmark: Any, stage: str) -> None:
    expect_delay(train_benchmark(delayed(stage), Recipe(), rounds=3, iterations=2), stage)


@pytest.mark.parametrize("stage", ["load", "forward", "backward", "optimizer"])
def test_a_delay_is_found_in_the_stage_of_a_users_step(step_benchmark: Any, stage: str) -> None:
    build_step, _ = delayed_training(stage)

    expect_delay(step_benchmark(build_step, rounds=3, iterations=2), stage)


@pytest.mark.parametrize("stage", ["load", "forward", "backward", "optimizer"])
def test_a_delay_is_found_in_the_stage_of_a_users_loop(loop_benchmark: Any, stage: str) -> None:
    _, train = delayed_training(stage)

    expect_delay(loop_benchmark(train, steps=18, warmup=2), stage)


def test_the_slowest_rank_is_the_cells_time(train_benchmark: Any, rank_group: Any) -> None:
    workload = delayed("forward", only_on_rank=1)

    outcome = train_benchmark(workload, Recipe(parallel="ddp:2"), rounds=10, iterations=2)

    by_hand_s = max(rank_group(2, time_by_hand, partial(train_by_hand, workload), 20))
    assert statistics.fmean(outcome.step_times_s) == pytest.approx(by_hand_s, rel=ALLOWED_RATIO)
    assert outcome.record.stages_s.forward == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)


@pytest.mark.parametrize("stage", ["load", "forward", "backward", "optimizer"])
def test_a_slow_rank_is_named_with_its_stage_in_a_users_step(
    step_benchmark: Any, rank_group: Any, stage: str
) -> None:
    build_step, _ = delayed_training(stage, only_on_rank=1, delay_s=SHORT_DELAY_S)

    def train() -> None:
        step = build_step()
        while True:
            step()

    outcome = step_benchmark(build_step, ranks=2, rounds=10, iterations=NUM_STEPS // 10)

    expect_slow_rank(outcome, stage, max(rank_group(2, time_by_hand, train, NUM_STEPS)))


def test_a_slow_rank_is_named_where_no_stage_is_marked(step_benchmark: Any) -> None:
    delay = spin_on(1, SHORT_DELAY_S)

    def build_step() -> Any:
        import torch

        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step() -> Any:
            delay()
            loss = model(torch.ones(BATCH_SIZE, 8)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    record = step_benchmark(build_step, ranks=2, rounds=10, iterations=NUM_STEPS // 10).record

    first_s, second_s = record.rank_stages_s["other"]
    assert second_s - first_s == pytest.approx(SHORT_DELAY_S, rel=ALLOWED_RATIO)
    assert record.slow_ranks == {"other": 1}


@pytest.mark.parametrize("stage", ["load", "forward", "backward", "optimizer"])
def test_a_slow_rank_is_named_with_its_stage_in_a_users_loop(
    loop_benchmark: Any, rank_group: Any, stage: str
) -> None:
    build_step, train = delayed_training(stage, only_on_rank=1, delay_s=SHORT_DELAY_S)

    def train_in_group() -> None:
        step = build_step()
        while True:
            step()

    outcome = loop_benchmark(train, ranks=2, steps=NUM_STEPS, warmup=2)

    expect_slow_rank(outcome, stage, max(rank_group(2, time_by_hand, train_in_group, NUM_STEPS)))
