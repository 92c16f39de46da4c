"""Buffers, averages of weights and statistics over ranks: what T1 and the replayed step prove."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]
Expect = Callable[..., dict[str, str]]


def statuses(report: EquivalenceReport) -> dict[str, str]:
    return {row.check: row.status for row in report.rows}


class Averaged(nn.Module):
    """A layer and the moving average of its weights, which each forward pass or step moves."""

    def __init__(self, moves_in_forward: bool, skips: Callable[[], bool]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.average = copy.deepcopy(self.layer).requires_grad_(False)
        self.moves_in_forward = moves_in_forward
        self.skips = skips

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.moves_in_forward:
            self.move()
        return self.layer(inputs)

    @torch.no_grad()
    def move(self) -> None:
        if not self.skips():
            for mean, weight in zip(
                self.average.parameters(), self.layer.parameters(), strict=True
            ):
                mean.lerp_(weight, 0.1)


@pytest.fixture
def averaging(perceptron_workload: Build) -> Build:
    """(moves_in_forward, skips) -> a workload with an average of its weights."""

    def build(moves_in_forward: bool, skips: Callable[[], bool] = lambda: False) -> Workload:
        models: list[Averaged] = []

        def build_model() -> nn.Module:
            models.append(Averaged(moves_in_forward, skips))
            return models[-1]

        def build_optimizer(parameters: Any) -> Optimizer:
            optimizer, model = SGD(parameters, lr=0.05, momentum=0.9), models[-1]
            if not moves_in_forward:
                optimizer.register_step_post_hook(lambda *_: model.move())
            return optimizer

        return perceptron_workload(
            build_model=build_model, build_optimizer=build_optimizer, blocks=None
        )

    return build


@pytest.mark.parametrize("moves_in_forward", [True, False])
@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
def test_an_average_of_the_weights_is_proven(
    check_equivalence: Check, averaging: Build, parallel: str, moves_in_forward: bool
) -> None:
    report = check_equivalence(averaging(moves_in_forward), Recipe(parallel=parallel))

    assert report.is_equivalent, str(report)


def on_ranks() -> bool:
    return dist.is_initialized()


def on_last_rank() -> bool:
    return dist.is_initialized() and dist.get_rank() == 1


@pytest.mark.parametrize(
    ("moves_in_forward", "skips", "where", "cause"),
    [
        (True, on_ranks, "the buffer of 'average.weight' differs at step 2", ""),
        (
            True,
            on_last_rank,
            "the buffer of 'average.weight' differs at step 2 on rank 1",
            "BatchNorm, or another forward pass with side effects: each rank keeps the statistics "
            "of its own data",
        ),
        (
            False,
            on_ranks,
            "the buffer of 'average.weight' differs at step 1",
            "the optimizer's step leaves other buffers than in one process: does every rank "
            "average its weights, and after each step?",
        ),
    ],
    ids=["forward", "one-rank", "step"],
)
def test_an_average_that_does_not_move_is_a_mismatch(
    check_equivalence: Check,
    averaging: Build,
    moves_in_forward: bool,
    skips: Callable[[], bool],
    where: str,
    cause: str,
) -> None:
    report = check_equivalence(averaging(moves_in_forward, skips), Recipe(parallel="ddp:2"))

    assert report.status == "mismatch", str(report)
    assert any(
        row.reason.startswith(f"{where} by ") and cause in row.reason for row in report.rows
    ), str(report)


def test_an_average_that_each_micro_batch_moves_is_no_mean_over_the_batch(
    expect_mismatch: Expect, averaging: Build
) -> None:
    recipe = Recipe(parallel="ddp:2", grad_accumulation_steps=2)
    where = "the buffer of 'average.weight' differs at step 2"
    cause = "the forward pass changes a buffer, once for each micro-batch"

    expect_mismatch(averaging(True), recipe, "T1", where, cause, num_steps=2)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)


class GlooSyncBatchNorm(nn.SyncBatchNorm):
    """What torch's own computes on GPUs, which it refuses to do on a CPU."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not dist.is_initialized():
            return nn.functional.batch_norm(
                inputs, self.running_mean, self.running_var, self.weight, self.bias, True
            )
        size = len(inputs) * dist.get_world_size()
        mean = _Sum.apply(inputs.sum(0)) / size
        variance = _Sum.apply((inputs - mean).square().sum(0)) / size
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(variance * size / (size - 1), 0.1)
        normed = (inputs - mean) * (variance + self.eps).rsqrt()
        return normed * self.weight + self.bias


def make_normed(layer: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), layer(8), nn.Linear(8, 3))


def test_statistics_over_all_ranks_are_proven_by_t1_alone(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(build_model=lambda: make_normed(GlooSyncBatchNorm))

    report = check_equivalence(workload, Recipe(parallel="horovod-like:2"))

    assert statuses(report) == {"T1": "equivalent", "data": "equivalent"}, str(report)
    assert report.inapplicable == {
        "T0": (
            f"communication in the forward pass (SyncBatchNorm, {__name__}) makes a rank's "
            "gradient depend on other shards too"
        ),
        "checkpointing": "the recipe recomputes nothing",
    }


class ForgetfulSyncBatchNorm(GlooSyncBatchNorm):
    """Its running statistics are those of the first rank's batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        kept = self.running_mean.clone()
        outputs = super().forward(inputs)
        if dist.is_initialized():
            first = inputs.detach().mean(0)
            dist.broadcast(first, src=0)
            self.running_mean.copy_(kept.lerp_(first, 0.1))
        return outputs


def test_running_statistics_of_one_rank_are_a_mismatch_that_t1_finds(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(build_model=lambda: make_normed(ForgetfulSyncBatchNorm))

    report = check_equivalence(workload, Recipe(parallel="horovod-like:2"), num_steps=1)

    assert report.worst.check == "T1"
    assert report.worst.reason.startswith("the buffer of '1.running_mean' differs at step 1 by ")
