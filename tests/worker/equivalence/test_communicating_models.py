"""Models and losses that communicate: a rank's gradient depends on all shards, so T1 decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn import functional

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]
REASON = (
    f"communication in the forward pass ({__name__}) makes a rank's gradient depend on other "
    "shards too"
)


def is_kept(target: Tensor) -> Tensor:
    """Class 2 is padding, of which shards have different shares."""
    return (target != 2).sum().float()


def counted_in_place(target: Tensor) -> Tensor:
    total = is_kept(target)
    dist.all_reduce(total)
    return total


def counted_functionally(target: Tensor) -> Tensor:
    return all_reduce(is_kept(target), "sum", dist.group.WORLD)


def counted_by_gathering(target: Tensor) -> Tensor:
    counts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, is_kept(target))
    return torch.stack(counts).sum()


class TokenLoss:
    """The mean over the kept samples of all ranks, which DDP's mean over ranks does not change."""

    def __init__(self, count: Callable[[Tensor], Tensor], times: int | None = None) -> None:
        self.count = count
        self.times = times

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs, target, ignore_index=2, reduction="sum")
        if not dist.is_initialized():
            return loss / is_kept(target)
        return loss * (self.times or dist.get_world_size()) / self.count(target)


@pytest.mark.parametrize(
    "count",
    [counted_in_place, counted_functionally, counted_by_gathering],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("parallel", ["ddp:2", "fsdp:2"])
def test_a_loss_that_counts_over_all_ranks_is_equivalent(
    check_equivalence: Check,
    perceptron_workload: Build,
    parallel: str,
    count: Callable[..., Tensor],
) -> None:
    workload = perceptron_workload(loss=TokenLoss(count))

    report = check_equivalence(workload, Recipe(parallel=parallel), num_steps=2)

    assert report.status == "equivalent", str(report)
    assert report.inapplicable["T0"] == REASON


def test_what_is_counted_over_all_ranks_and_not_multiplied_by_their_number_is_a_mismatch(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(loss=TokenLoss(counted_in_place, times=1))

    report = check_equivalence(workload, Recipe(parallel="ddp:2"), num_steps=1)

    assert (report.worst.check, report.worst.status) == ("T1", "mismatch"), str(report)


def test_in_a_low_precision_what_only_t0_could_see_is_not_exercised(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(loss=TokenLoss(counted_in_place))
    recipe = Recipe(parallel="ddp:2", precision="amp-bf16")

    report = check_equivalence(workload, recipe, num_steps=1)

    statuses = {row.check: row.status for row in report.rows}
    assert (statuses["T0"], statuses["T2"]) == ("not exercised", "equivalent"), str(report)
    assert f"{REASON}; T2 does not see what is below the rounding of amp-bf16" in str(report)


def test_what_comm_hook_compresses_hides_a_communicating_loss_from_t1(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(loss=TokenLoss(counted_in_place))

    report = check_equivalence(workload, Recipe(parallel="ddp:2", comm_hook="bf16"), num_steps=1)

    statuses = {row.check: row.status for row in report.rows}
    assert (statuses["T0"], statuses["T1"]) == ("not exercised", "not exercised"), str(report)


def test_a_barrier_excuses_no_difference(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    def wrong(outputs: Tensor, target: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs, target)
        if dist.is_initialized():
            dist.barrier()
            loss = loss * 1.5
        return loss

    report = check_equivalence(perceptron_workload(loss=wrong), Recipe(parallel="ddp:2"))

    assert {row.check: row.status for row in report.rows}["T0"] == "mismatch", str(report)


def test_a_metric_over_all_ranks_takes_nothing_from_what_t0_proves(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    def told(outputs: Tensor, target: Tensor) -> Tensor:
        if dist.is_initialized():
            counted_in_place(target)
        return functional.cross_entropy(outputs, target)

    report = check_equivalence(perceptron_workload(loss=told), Recipe(parallel="ddp:2"))

    assert {row.check: row.status for row in report.rows}["T0"] == "equivalent", str(report)


class Contrast(nn.Module):
    """Scores each sample against those of all ranks, as a contrastive loss does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        mine = self.embed(inputs)
        if not dist.is_initialized():
            return mine @ mine.T
        return mine @ torch.cat(differentiable.all_gather(mine)).T


def contrast(scores: Tensor, target: Tensor) -> Tensor:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return functional.cross_entropy(scores, torch.arange(len(scores)) + rank * len(scores))


def test_a_contrast_with_the_samples_of_all_ranks_is_equivalent(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    workload = perceptron_workload(build_model=Contrast, loss=contrast)

    report = check_equivalence(workload, Recipe(parallel="ddp:2"), num_steps=2)

    assert report.status == "equivalent", str(report)
    assert report.inapplicable["T0"] == REASON


def test_collectives_of_the_parallel_mode_are_no_communication_of_the_model(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    report = check_equivalence(perceptron_workload(), Recipe(parallel="fsdp:2"), num_steps=1)

    assert "T0" not in report.inapplicable
