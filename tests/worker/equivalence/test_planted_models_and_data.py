"""A model or data that make a recipe another computation: a mismatch that says why."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DistributedSampler, TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.worker.training import checkpointing

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]
Expect = Callable[..., dict[str, str]]

SEMANTIC_CHECKS = {
    "fp64": "T1",
    "fp32": "T1",
    "bf16": "T2",
    "amp-bf16": "T2",
    "amp-fp16": "T2",
    "O1": "T2",
    "O2": "T2",
    "O3": "T2",
}


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5)), nn.Linear(8, 3))


def with_batchnorm() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), nn.Linear(8, 3))


class Growing(nn.Module):
    """Multiplies by a number that each pass doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.scale = self.scale * 2
        return inputs * self.scale


def with_growing_scale() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(6, 8), Growing()), nn.Linear(8, 3))


def forget_random_state(model: nn.Module) -> None:
    checkpointing.checkpoint = functools.partial(checkpoint, preserve_rng_state=False)


def see_the_first_shard(model: nn.Module) -> None:
    right = DistributedSampler.__init__
    DistributedSampler.__init__ = lambda *args, **options: right(*args, **{**options, "rank": 0})


def forget_epoch(model: nn.Module) -> None:
    DistributedSampler.set_epoch = lambda self, epoch: None


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("precision", SEMANTIC_CHECKS)
def test_recomputing_with_other_random_numbers_is_found(
    check_equivalence: Check,
    perceptron_workload: Build,
    plant: Build,
    expect_mismatch: Expect,
    parallel: str,
    precision: str,
) -> None:
    recipe = Recipe(parallel=parallel, precision=precision, checkpointing="every-block")
    healthy = check_equivalence(perceptron_workload(build_model=with_dropout), recipe, num_steps=1)
    assert healthy.status == "equivalent", str(healthy)

    expect_mismatch(
        plant(forget_random_state, everywhere=True, build_model=with_dropout),
        recipe,
        "checkpointing",
        "the gradient of '0.0.weight' differs at step 1",
        "random numbers: recomputation draws other numbers than the forward pass did; is "
        "preserve_rng_state off, or does the model draw from a generator of its own?",
    )


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "O2"])
def test_recomputing_side_effects_is_found(
    perceptron_workload: Build, expect_mismatch: Expect, parallel: str, precision: str
) -> None:
    expect_mismatch(
        perceptron_workload(build_model=with_batchnorm),
        Recipe(parallel=parallel, precision=precision, checkpointing="every-block"),
        "checkpointing",
        "the buffer of '0.1.running_mean' differs at step 1",
        "side effects: the forward pass changes a buffer, as BatchNorm changes its statistics, "
        "and recomputation changes it once more",
    )


def test_a_buffer_that_a_recomputation_moves_is_named_before_the_gradients_that_follow_from_it(
    perceptron_workload: Build, expect_mismatch: Expect
) -> None:
    expect_mismatch(
        perceptron_workload(build_model=with_growing_scale),
        Recipe(checkpointing="every-block"),
        "checkpointing",
        "the buffer of '0.1.scale' differs at step 1",
        "side effects: the forward pass changes a buffer, as BatchNorm changes its statistics, "
        "and recomputation changes it once more",
    )


@pytest.mark.parametrize(("precision", "check"), SEMANTIC_CHECKS.items())
def test_batchnorm_without_synchronisation_is_another_computation(
    perceptron_workload: Build, expect_mismatch: Expect, precision: str, check: str
) -> None:
    found = expect_mismatch(
        perceptron_workload(build_model=with_batchnorm),
        Recipe(parallel="ddp:2", precision=precision),
        check,
        "the gradient of '0.0.weight' differs at step 1",
        "BatchNorm: each rank, micro-batch or chunk is normalised by its own statistics, which is "
        "a different computation; use SyncBatchNorm or GroupNorm",
    )

    assert found["T0"] == "equivalent"


@pytest.mark.parametrize(("precision", "check"), SEMANTIC_CHECKS.items())
def test_a_mean_of_means_is_found(
    perceptron_workload: Build,
    points: Callable[[int], TensorDataset],
    expect_mismatch: Expect,
    precision: str,
    check: str,
) -> None:
    inputs, targets = points(64).tensors
    # -100 is cross_entropy's own mark of a target that does not count, so that each rank's loss is
    # the mean over another number of samples.
    ignored = torch.rand(64, generator=torch.Generator().manual_seed(3)) < 0.5
    masked = TensorDataset(inputs, targets.masked_fill(ignored, -100))

    found = expect_mismatch(
        perceptron_workload(build_dataset=lambda split: masked if split == "train" else None),
        Recipe(parallel="ddp:2", precision=precision),
        check,
        "the gradient of 'hidden.weight' differs at step 1",
        "the mean over the batch is a mean of means: do shards or masks differ in size, or does "
        "the loss relate samples?",
    )

    assert found["T0"] == "equivalent"


def test_the_same_shard_on_both_ranks_is_found(check_equivalence: Check, plant: Build) -> None:
    report = check_equivalence(plant(see_the_first_shard), Recipe(parallel="ddp:2"), num_steps=1)

    assert report.worst.status == "mismatch", str(report)
    assert report.worst.reason.startswith("epoch 1 repeats 32 of its 64 samples, such as index ")
    assert "likeliest cause: the sampler does not know its rank" in report.worst.reason


def test_ranks_that_do_not_know_their_epoch_are_found(
    check_equivalence: Check, plant: Build, points: Callable[[int], TensorDataset]
) -> None:
    broken = plant(forget_epoch, build_dataset=lambda _: points(32))

    report = check_equivalence(broken, Recipe(parallel="ddp:2"))

    assert report.worst.status == "mismatch", str(report)
    assert report.worst.reason.startswith("epoch 2 has the order of epoch 1, from batch 1")


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
def test_a_sampler_that_does_not_know_the_epoch_is_found(
    check_equivalence: Check, plant: Build, parallel: str
) -> None:
    broken = plant(forget_epoch, everywhere=True)

    report = check_equivalence(broken, Recipe(parallel=parallel), num_steps=1)

    assert report.worst.status == "mismatch", str(report)
    assert report.worst.reason == (
        "epoch 2 has the order of epoch 1, from batch 1 of shard 0 on; "
        "likeliest cause: no set_epoch, so that the sampler never shuffles anew"
    )
