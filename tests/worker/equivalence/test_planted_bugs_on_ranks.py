"""A bug of the training step, in real ranks, is a mismatch with its place and likeliest cause."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.worker.training import step
from perfsuite.worker.training.mixed_precision import MasterWeights
from perfsuite.worker.training.parallel import data_parallel
from perfsuite.worker.training.parallel.strategy import Strategy

Build = Callable[..., Workload]
Expect = Callable[..., dict[str, str]]
Bug = Callable[[nn.Module], None]
Run = Callable[..., Any]

FULL_PRECISIONS = ["fp64", "fp32"]
# Those of a gradient wider than what a compressed reduction sends.
WIDE_PRECISIONS = [*FULL_PRECISIONS, "amp-bf16", "amp-fp16", "O1"]
PRECISIONS = [*WIDE_PRECISIONS, "bf16", "O2", "O3"]

FIRST_GRADIENT = "the gradient of 'hidden.weight' differs at step 1"
NEVER_SYNCHRONISED = "the gradients are not synchronised: was the last backward inside no_sync()?"
NOT_ALL_SYNCHRONISED = (
    "the gradients are not synchronised: was a micro-batch that is to be reduced inside no_sync()?"
)
NOT_FROM_GRADIENTS = (
    "the optimizer's step does not follow from the gradients: a norm over one rank's part, "
    "state that another process shares, stale master weights, or a clip before unscaling"
)


def on_two_ranks(precision: str, **fields: Any) -> Recipe:
    return Recipe(parallel="ddp:2", precision=precision, **fields)


def semantic_check(precision: str) -> str:
    return "T1" if precision in FULL_PRECISIONS else "T2"


@pytest.mark.parametrize("num_micro_batches", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_ranks_without_a_bug_are_equivalent(
    check_equivalence: Callable[..., EquivalenceReport],
    perceptron_workload: Build,
    precision: str,
    num_micro_batches: int,
) -> None:
    recipe = on_two_ranks(precision, grad_accumulation_steps=num_micro_batches)

    report = check_equivalence(perceptron_workload(), recipe, num_steps=1)

    assert report.status == "equivalent", str(report)


# Gradients


def lose_gradient(model: nn.Module) -> None:
    model.get_parameter("output.bias").register_hook(torch.zeros_like)


def scale_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * (1 + 1 / (8 * dist.get_world_size())))


def lose_share_of_last_rank(model: nn.Module) -> None:
    if dist.get_rank() == dist.get_world_size() - 1:
        for parameter in model.parameters():
            parameter.register_hook(torch.zeros_like)


def reduced_by(hook: Any) -> Bug:
    def plant(model: nn.Module) -> None:
        data_parallel._register_comm_hook = lambda model, *_: model.register_comm_hook(None, hook)

    return plant


# Without annotations, which DDP would read and refuse, because in this file they are strings.
def sum_up(_, bucket):
    total = bucket.buffer().clone()
    dist.all_reduce(total)
    return _done(total)


def take_from_another_rank(_, bucket):
    gradients = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(gradients, bucket.buffer())
    return _done(gradients[dist.get_rank() - 1])


def keep_own_on_last_rank(_, bucket):
    own, mean = bucket.buffer().clone(), bucket.buffer() / dist.get_world_size()
    dist.all_reduce(mean)
    return _done(own if dist.get_rank() == dist.get_world_size() - 1 else mean)


def _done(gradient):
    future = torch.futures.Future()
    future.set_result(gradient)
    return future


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("bug", "where", "cause"),
    [
        (
            lose_gradient,
            "the gradient of 'output.bias' differs at step 1",
            "the gradient of 'output.bias' is lost: is it detached?",
        ),
        (scale_gradients, FIRST_GRADIENT, "the loss or the gradients are scaled"),
        (lose_share_of_last_rank, FIRST_GRADIENT, "a rank's share is missing from the mean"),
        (
            reduced_by(sum_up),
            FIRST_GRADIENT,
            "gradients are summed where they are to be averaged, or reduced twice",
        ),
        (
            reduced_by(take_from_another_rank),
            FIRST_GRADIENT,
            "a rank takes another rank's gradient for the mean",
        ),
    ],
    ids=["zeroed", "scaled", "share-lost", "doubled", "of-another-rank"],
)
def test_a_wrong_gradient_is_found_by_both_checks(
    plant: Build, expect_mismatch: Expect, precision: str, bug: Bug, where: str, cause: str
) -> None:
    found = expect_mismatch(plant(bug), on_two_ranks(precision), "T0", where, cause)

    assert found[semantic_check(precision)] == "mismatch"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gradient_that_one_rank_did_not_synchronise_names_the_rank(
    plant: Build, expect_mismatch: Expect, precision: str
) -> None:
    broken = plant(reduced_by(keep_own_on_last_rank))

    found = expect_mismatch(
        broken, on_two_ranks(precision), "T0", f"{FIRST_GRADIENT} on rank 1", NOT_ALL_SYNCHRONISED
    )

    # What it judges is rank 0's, so T1 and T2 cannot tell.
    assert found[semantic_check(precision)] == "equivalent"


@pytest.mark.parametrize("precision", WIDE_PRECISIONS)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_compressed_reduction_is_found(
    plant: Build, expect_mismatch: Expect, precision: str, name: str
) -> None:
    broken = plant(reduced_by(getattr(default_hooks, f"{name}_compress_hook")))

    expect_mismatch(
        broken,
        on_two_ranks(precision),
        "T0",
        FIRST_GRADIENT,
        f"the reduction is compressed to {name}: is a communication hook registered?",
    )


# Accumulation


def accumulated_by(run: Run) -> Bug:
    def plant(model: nn.Module) -> None:
        Strategy.run_micro_batch = functools.partialmethod(run, Strategy.run_micro_batch)

    return plant


def forget_boundary(self: Any, right: Run, *args: Any, is_last: bool, **kwargs: Any) -> Any:
    return right(self, *args, is_last=False, **kwargs)


def reduce_the_first(self: Any, right: Run, *args: Any, is_last: bool, **kwargs: Any) -> Any:
    return right(self, *args, is_last=not is_last, **kwargs)


def drop_the_first(
    self: Any, right: Run, trainer: Any, *args: Any, is_last: bool, **kwargs: Any
) -> Any:
    if is_last:
        trainer.optimizer.zero_grad()
    return right(self, trainer, *args, is_last=is_last, **kwargs)


def drop_the_last(
    self: Any, right: Run, trainer: Any, inputs: Any, target: Any, *, is_last: bool, stage: Any
) -> Any:
    if is_last:
        with torch.no_grad():
            return step.compute_loss(trainer, trainer.module(inputs), target)
    return right(self, trainer, inputs, target, is_last=True, stage=stage)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (forget_boundary, NEVER_SYNCHRONISED),
        (drop_the_last, "a micro-batch of the accumulation is lost"),
    ],
)
def test_a_wrong_accumulation_is_found(
    plant: Build, expect_mismatch: Expect, precision: str, run: Run, cause: str
) -> None:
    recipe = on_two_ranks(precision, grad_accumulation_steps=2)

    expect_mismatch(plant(accumulated_by(run)), recipe, "T0", FIRST_GRADIENT, cause)


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (reduce_the_first, NOT_ALL_SYNCHRONISED),
        (drop_the_first, "a micro-batch of the accumulation is lost"),
    ],
)
def test_an_accumulation_that_is_wrong_from_its_start_is_found(
    plant: Build, expect_mismatch: Expect, run: Run, cause: str
) -> None:
    recipe = on_two_ranks("fp32", grad_accumulation_steps=2)

    expect_mismatch(plant(accumulated_by(run)), recipe, "T0", FIRST_GRADIENT, cause)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_micro_batch_that_one_process_drops_is_found(
    plant: Build, expect_mismatch: Expect, precision: str
) -> None:
    broken = plant(accumulated_by(drop_the_last), everywhere=True)

    expect_mismatch(
        broken,
        Recipe(precision=precision, grad_accumulation_steps=2),
        semantic_check(precision),
        FIRST_GRADIENT,
        "a micro-batch of the accumulation is lost",
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_smallest_error_of_scale_is_found_under_accumulation(
    check_equivalence: Callable[..., EquivalenceReport], plant: Build, precision: str
) -> None:
    recipe = on_two_ranks(precision, grad_accumulation_steps=4)

    report = check_equivalence(plant(scale_gradients), recipe, num_steps=1)

    assert {row.check: row.status for row in report.rows}["T0"] == "mismatch", str(report)


# The optimizer's step


def clip_while_scaled(model: nn.Module) -> None:
    def apply_gradients(trainer: Any) -> None:
        step.finish_gradients(trainer)
        step.clip_gradients(trainer, trainer.recipe.clip_grad_norm)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()

    step.apply_gradients = apply_gradients


def keep_model_stale(model: nn.Module) -> None:
    MasterWeights.step = lambda self, closure=None: self.optim.step(closure)


def round_masters(model: nn.Module) -> None:
    right = MasterWeights.step

    def take_step(self: MasterWeights, closure: Any = None) -> None:
        right(self, closure)
        for parameter, master in self._copied:
            master.data.copy_(parameter)

    MasterWeights.step = take_step


@pytest.mark.parametrize(("parallel", "check"), [("single", "T2"), ("ddp:2", "T0")])
@pytest.mark.parametrize("precision", ["amp-fp16", "O1", "O2"])
def test_clipping_before_unscaling_is_found(
    check_equivalence: Callable[..., EquivalenceReport],
    perceptron_workload: Build,
    plant: Build,
    expect_mismatch: Expect,
    parallel: str,
    check: str,
    precision: str,
) -> None:
    recipe = Recipe(parallel=parallel, precision=precision, clip_grad_norm=0.1)
    assert check_equivalence(perceptron_workload(), recipe, num_steps=1).is_equivalent

    where = "the parameter of 'hidden.weight' differs at step 1"
    broken = plant(clip_while_scaled, everywhere=True)
    expect_mismatch(broken, recipe, check, where, NOT_FROM_GRADIENTS)


@pytest.mark.parametrize(
    ("bug", "first_wrong_step"),
    # Rounding a master loses nothing that its model had, so the step after it is the first to tell.
    [(keep_model_stale, 1), (round_masters, 2)],
)
def test_stale_master_weights_are_found(
    plant: Build, expect_mismatch: Expect, bug: Bug, first_wrong_step: int
) -> None:
    where = f"the parameter of 'hidden.weight' differs at step {first_wrong_step}"

    expect_mismatch(plant(bug), on_two_ranks("O2"), "T0", where, NOT_FROM_GRADIENTS, num_steps=3)
