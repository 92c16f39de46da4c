"""Each known bug, in real ranks, is called a mismatch, with its place and its likeliest cause.

A bug is planted by `build_model`, which breaks something of the process that it is called in. That
process is a rank's own and ends with it. `on_ranks` spares the process that computes references; it
needs a process group to tell the two apart. `everywhere` is for what no reference uses.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DistributedSampler, TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.records import EquivalenceReport, EquivalenceRow
from perfsuite.training import checkpointing, step
from perfsuite.training.masters import MasterWeights
from perfsuite.training.parallel import replicas
from perfsuite.training.parallel.replicas import DistributedReplicas
from perfsuite.training.parallel.single import Single

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]
Bug = Callable[[nn.Module], None]

FULL_PRECISIONS = ["fp64", "fp32"]
# Those of a gradient wider than what a compressed reduction sends.
WIDE_PRECISIONS = [*FULL_PRECISIONS, "amp-bf16", "amp-fp16", "O1"]
PRECISIONS = [*WIDE_PRECISIONS, "bf16", "O2", "O3"]

NOT_SYNCHRONISED = "the gradients are not synchronised: was the last backward inside no_sync()?"
NOT_FROM_GRADIENTS = (
    "the optimizer's step does not follow from the gradients: stale master weights, gradients "
    "clipped before they are unscaled, or state that another process shares"
)


def on_ranks(workload: Workload, bug: Bug) -> Workload:
    return everywhere(workload, lambda model: bug(model) if dist.is_initialized() else None)


def everywhere(workload: Workload, bug: Bug) -> Workload:
    def build_model() -> nn.Module:
        model = workload.build_model()
        bug(model)
        return model

    return dataclasses.replace(workload, build_model=build_model)


def row_of(report: EquivalenceReport, check: str) -> EquivalenceRow:
    return next(row for row in report.rows if row.check == check)


def semantic_check(precision: str) -> str:
    return "T1" if precision in FULL_PRECISIONS else "T2"


def assert_mismatch(report: EquivalenceReport, check: str, where: str, cause: str = "") -> None:
    row = row_of(report, check)
    assert report.status == "mismatch", str(report)
    assert row.status == "mismatch", str(report)
    assert row.reason.startswith(f"the {where} by "), str(report)
    assert not cause or row.reason.endswith(f"; likeliest cause: {cause}"), str(report)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("num_micro_batches", [1, 2])
def test_without_a_bug_the_ranks_are_equivalent(
    check_equivalence: Check,
    perceptron_workload: Build,
    precision: str,
    num_micro_batches: int,
) -> None:
    recipe = Recipe(
        parallel="ddp:2", precision=precision, grad_accumulation_steps=num_micro_batches
    )

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
        replicas._register_comm_hook = lambda model, *_: model.register_comm_hook(None, hook)

    return plant


# Without annotations, which DDP would read and refuse, because in this file they are strings.
def sum_up(_, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(_first)


def _first(future):
    return future.value()[0]


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
    ("bug", "name", "cause"),
    [
        (
            lose_gradient,
            "output.bias",
            "the gradient of 'output.bias' is lost: is it detached?",
        ),
        (scale_gradients, "hidden.weight", "the loss or the gradients are scaled"),
        (
            lose_share_of_last_rank,
            "hidden.weight",
            "a rank's share is missing from the mean",
        ),
        (
            reduced_by(sum_up),
            "hidden.weight",
            "gradients are summed where they are to be averaged, or reduced twice",
        ),
        (
            reduced_by(take_from_another_rank),
            "hidden.weight",
            "a rank takes another rank's gradient for the mean",
        ),
    ],
    ids=["zeroed", "scaled", "share-lost", "doubled", "of-another-rank"],
)
def test_a_wrong_gradient_is_found(
    check_equivalence: Check,
    perceptron_workload: Build,
    precision: str,
    bug: Bug,
    name: str,
    cause: str,
) -> None:
    broken = on_ranks(perceptron_workload(), bug)

    report = check_equivalence(broken, Recipe(parallel="ddp:2", precision=precision), num_steps=1)

    where = f"gradient of {name!r} differs at step 1"
    assert_mismatch(report, "T0", where, cause)
    assert_mismatch(report, semantic_check(precision), where, cause)


def test_a_gradient_that_one_rank_did_not_synchronise_names_the_rank(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    broken = on_ranks(perceptron_workload(), reduced_by(keep_own_on_last_rank))

    report = check_equivalence(broken, Recipe(parallel="ddp:2"), num_steps=1)

    where = "gradient of 'hidden.weight' differs at step 1 on rank 1"
    assert_mismatch(report, "T0", where, NOT_SYNCHRONISED)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_smallest_error_of_scale_is_found_under_accumulation(
    check_equivalence: Check, perceptron_workload: Build, precision: str
) -> None:
    broken = on_ranks(perceptron_workload(), scale_gradients)
    recipe = Recipe(parallel="ddp:2", precision=precision, grad_accumulation_steps=4)

    report = check_equivalence(broken, recipe, num_steps=1)

    row = row_of(report, "T0")
    assert row.status == "mismatch", str(report)
    assert row.reason.endswith("the loss or the gradients are scaled"), str(report)


@pytest.mark.parametrize("precision", WIDE_PRECISIONS)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_compressed_reduction_is_found(
    check_equivalence: Check, perceptron_workload: Build, precision: str, name: str
) -> None:
    hook = getattr(default_hooks, f"{name}_compress_hook")
    broken = on_ranks(perceptron_workload(), reduced_by(hook))

    report = check_equivalence(broken, Recipe(parallel="ddp:2", precision=precision), num_steps=1)

    assert_mismatch(
        report,
        "T0",
        "gradient of 'hidden.weight' differs at step 1",
        f"the reduction is compressed to {name}: is a communication hook registered?",
    )


# Accumulation


def accumulated_by(run: Callable[..., Any]) -> Bug:
    def plant(model: nn.Module) -> None:
        for strategy in (Single, DistributedReplicas):
            right = vars(strategy)["run_micro_batch"]
            strategy.run_micro_batch = functools.partialmethod(run, right)

    return plant


def forget_boundary(self, right, *args, is_last, **kwargs):
    return right(self, *args, is_last=False, **kwargs)


def reduce_the_first(self, right, *args, is_last, **kwargs):
    return right(self, *args, is_last=not is_last, **kwargs)


def drop_the_first(self, right, trainer, *args, is_last, **kwargs):
    if is_last:
        trainer.optimizer.zero_grad()
    return right(self, trainer, *args, is_last=is_last, **kwargs)


def drop_the_last(self, right, trainer, inputs, target, *, is_last, **kwargs):
    if is_last:
        with torch.no_grad():
            return step.compute_loss(trainer, trainer.module(inputs), target)
    return right(self, trainer, inputs, target, is_last=True, **kwargs)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (forget_boundary, NOT_SYNCHRONISED),
        (drop_the_last, "a micro-batch of the accumulation is lost"),
    ],
)
def test_a_wrong_accumulation_is_found(
    check_equivalence: Check,
    perceptron_workload: Build,
    precision: str,
    run: Callable[..., Any],
    cause: str,
) -> None:
    broken = on_ranks(perceptron_workload(), accumulated_by(run))
    recipe = Recipe(parallel="ddp:2", precision=precision, grad_accumulation_steps=2)

    report = check_equivalence(broken, recipe, num_steps=1)

    assert_mismatch(report, "T0", "gradient of 'hidden.weight' differs at step 1", cause)


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (reduce_the_first, NOT_SYNCHRONISED),
        (drop_the_first, "a micro-batch of the accumulation is lost"),
    ],
)
def test_an_accumulation_that_is_wrong_from_its_start_is_found(
    check_equivalence: Check, perceptron_workload: Build, run: Callable[..., Any], cause: str
) -> None:
    broken = on_ranks(perceptron_workload(), accumulated_by(run))
    recipe = Recipe(parallel="ddp:2", grad_accumulation_steps=2)

    report = check_equivalence(broken, recipe, num_steps=1)

    assert_mismatch(report, "T0", "gradient of 'hidden.weight' differs at step 1", cause)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_micro_batch_that_one_process_drops_is_found(
    check_equivalence: Check, perceptron_workload: Build, precision: str
) -> None:
    broken = everywhere(perceptron_workload(), accumulated_by(drop_the_last))
    recipe = Recipe(precision=precision, grad_accumulation_steps=2)

    report = check_equivalence(broken, recipe, num_steps=1)

    assert_mismatch(
        report,
        semantic_check(precision),
        "gradient of 'hidden.weight' differs at step 1",
        "samples of the batch are lost",
    )


# The optimizer's step


def clip_while_scaled(model: nn.Module) -> None:
    def apply_gradients(trainer: Any) -> None:
        step.finish_gradients(trainer)
        step.clip_gradients(trainer, trainer.recipe.clip_grad_norm)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()

    step.apply_gradients = apply_gradients


def keep_model_stale(model: nn.Module) -> None:
    MasterWeights.step = lambda self, closure=None: self.inner.step(closure)


def round_masters(model: nn.Module) -> None:
    right = MasterWeights.step

    def take_step(self: MasterWeights, closure: Any = None) -> None:
        right(self, closure)
        for parameter, master in self._copied:
            master.data.copy_(parameter)

    MasterWeights.step = take_step


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("precision", ["amp-fp16", "O1", "O2"])
def test_clipping_before_unscaling_is_found(
    check_equivalence: Check, perceptron_workload: Build, parallel: str, precision: str
) -> None:
    recipe = Recipe(parallel=parallel, precision=precision, clip_grad_norm=0.1)
    assert check_equivalence(perceptron_workload(), recipe, num_steps=1).is_equivalent

    broken = everywhere(perceptron_workload(), clip_while_scaled)
    report = check_equivalence(broken, recipe, num_steps=1)

    where = "parameter of 'hidden.weight' differs at step 1"
    check = "T2" if parallel == "single" else "T0"
    assert_mismatch(report, check, where, NOT_FROM_GRADIENTS)


@pytest.mark.parametrize(
    ("bug", "first_wrong_step"),
    [
        (keep_model_stale, 1),
        # Nothing is lost before there is a master that its model has not.
        (round_masters, 2),
    ],
)
def test_stale_master_weights_are_found(
    check_equivalence: Check, perceptron_workload: Build, bug: Bug, first_wrong_step: int
) -> None:
    broken = on_ranks(perceptron_workload(), bug)

    report = check_equivalence(broken, Recipe(parallel="ddp:2", precision="O2"))

    where = f"parameter of 'hidden.weight' differs at step {first_wrong_step}"
    assert_mismatch(report, "T0", where, NOT_FROM_GRADIENTS)
