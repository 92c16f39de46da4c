"""Does a cell's time say what happened? A known delay in one stage must be found, and there.

The delay is spun, not slept: a sleep overshoots by what the scheduler likes. The rest of the step
takes a hundredth of it or less.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from perfsuite import Recipe, Workload

DELAY_S = 0.2
BATCH_SIZE = 4
ALLOWED_RATIO = 0.03

pytestmark = pytest.mark.perf(matrix="full")


def delayed(stage: str, *, only_on_rank: int | None = None) -> Workload:
    """Return a tiny workload that takes `DELAY_S` longer in one stage."""

    def delay() -> None:
        import time

        import torch.distributed as dist

        if only_on_rank is None or dist.get_rank() == only_on_rank:
            end_s = time.perf_counter() + DELAY_S
            while time.perf_counter() < end_s:
                pass

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


@pytest.mark.parametrize("stage", ["load", "forward", "backward", "optimizer"])
def test_a_delay_is_found_in_its_stage(train_benchmark: Any, stage: str) -> None:
    outcome = train_benchmark(delayed(stage), Recipe(), rounds=3, iterations=2)

    times = outcome.record.stages_s
    assert statistics.median(outcome.step_times_s) == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)
    assert getattr(times, stage) == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)
    for other in {"load", "forward", "backward", "optimizer", "other"} - {stage}:
        assert getattr(times, other) < ALLOWED_RATIO * DELAY_S


def test_the_slowest_rank_is_the_cells_time(train_benchmark: Any) -> None:
    workload = delayed("forward", only_on_rank=1)

    outcome = train_benchmark(workload, Recipe(parallel="ddp:2"), rounds=3, iterations=2)

    assert statistics.median(outcome.step_times_s) == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)
    assert outcome.record.stages_s.forward == pytest.approx(DELAY_S, rel=ALLOWED_RATIO)
