from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.debug import CommDebugMode

from perfsuite import Recipe, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.measure.counters import count_iteration
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.training.step import evaluate_batch, train_step
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")
EPS = torch.finfo(torch.float32).eps


def groups_and_shares(workload: Workload, recipe: Recipe) -> tuple[list[str], float]:
    """The sharded modules, and the part of all parameters that this rank holds."""
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    names = [n for n, module in trainer.module.named_modules() if isinstance(module, FSDPModule)]
    parameters = list(trainer.module.parameters())
    local = sum(parameter.to_local().numel() for parameter in parameters)
    return names, local / sum(parameter.numel() for parameter in parameters)


def collectives_of_each_micro_batch(workload: Workload) -> list[dict[str, int]]:
    recipe = Recipe(parallel="fsdp:2", grad_accumulation_steps=3)
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    inputs, target = torch.randn(8, 1, 4, 4), torch.arange(8) % 4
    counts = []
    for index in range(3):
        with CommDebugMode() as collectives:
            trainer.strategy.run_micro_batch(
                trainer, inputs, target, is_last=index == 2, stage=untimed
            )
        counts.append({str(key): n for key, n in collectives.get_comm_counts().items()})
    return counts


def num_gathers_of_a_step(workload: Workload, parallel: str) -> int:
    trainer = build_trainer(workload, Recipe(parallel=parallel), device=CPU, seed=1)
    batch = (torch.randn(8, 1, 4, 4), torch.arange(8) % 4)
    with CommDebugMode() as collectives:
        train_step(trainer, iter([batch]), untimed)
    counts = collectives.get_comm_counts()
    return sum(number for name, number in counts.items() if "allgather" in str(name))


def bytes_of_a_step(workload: Workload, recipe: Recipe) -> int:
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    batch = (torch.randn(8, 1, 4, 4), torch.arange(8) % 4)
    train_step(trainer, iter([batch]), untimed)
    counts = run_iterations(
        count_iteration(), lambda stage: train_step(trainer, iter([batch]), stage)
    )
    return counts.collective_bytes


def dtypes_of_a_step(workload: Workload, parallel: str) -> list[torch.dtype]:
    """Of the losses in training and in evaluation, the weights, and their gradients."""
    recipe = Recipe(parallel=parallel, precision="mp-bf16")
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    batch = (torch.randn(8, 1, 4, 4), torch.arange(8) % 4)
    losses = [take(trainer, iter([batch]), untimed) for take in (train_step, evaluate_batch)]
    weights = list(trainer.module.parameters())
    return [*{one.dtype for one in (*losses, *weights, *(weight.grad for weight in weights))}]


def evaluate(workload: Workload) -> list[float]:
    trainer = build_trainer(workload, Recipe(parallel="fsdp:2"), device=CPU, seed=1)
    batch = (torch.ones(8, 1, 4, 4), torch.arange(8) % 4)
    losses = [evaluate_batch(trainer, iter([batch]), untimed)]
    losses.append(train_step(trainer, iter([batch]), untimed))
    losses.append(evaluate_batch(trainer, iter([batch]), untimed))
    return [float(loss) for loss in losses]


@pytest.mark.parametrize(
    ("parallel", "precision", "checkpointing"),
    [
        ("fsdp:2", "fp32", "none"),
        ("fsdp:2", "fp64", "none"),
        ("fsdp:2", "amp-bf16", "every-block"),
        ("fsdp:2", "O2", "segments:2"),
        ("zero2:2", "fp32", "none"),
        ("zero2:2", "amp-bf16", "every-block"),
        ("hsdp:1x2", "fp32", "selective"),
        ("hsdp:2x1", "bf16", "none"),
    ],
)
def test_two_ranks_compute_bitwise_what_one_process_computes_of_their_shards(
    train_on_ranks: Any,
    reference: Any,
    worst_error: Any,
    make_text: Any,
    parallel: str,
    precision: str,
    checkpointing: str,
) -> None:
    workload = make_text(dropout=0.2)
    recipe = Recipe(parallel=parallel, precision=precision, checkpointing=checkpointing)

    runs = train_on_ranks(workload, recipe)

    expected = reference(workload, recipe)
    for run in runs:
        assert worst_error(run.gradients, expected.gradients) == 0.0


@pytest.mark.parametrize("parallel", ["fsdp:3", "zero2:3", "hsdp:2x2"])
def test_more_ranks_with_accumulation_and_clipping_agree_to_rounding(
    train_on_ranks: Any, reference: Any, worst_error: Any, make_image: Any, parallel: str
) -> None:
    recipe = Recipe(parallel=parallel, grad_accumulation_steps=2, clip_grad_norm=0.1)

    runs = train_on_ranks(make_image(), recipe)

    expected = reference(make_image(), recipe)
    limit = 2 * EPS * (recipe.plan.size * 2) ** 0.5
    for run in runs:
        assert worst_error(run.gradients, expected.gradients) < limit
        assert worst_error([run.parameters], [expected.parameters]) < limit


def test_blocks_that_are_recomputed_together_are_gathered_together(
    rank_group: Any, make_text: Any
) -> None:
    recipe = Recipe(parallel="fsdp:2", checkpointing="segments:2")

    names, share = rank_group(2, groups_and_shares, make_text(), recipe)[0]

    assert names == ["", "layers.0", "layers.1", "layers.2", "layers.3"]
    assert share == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("precision", ["O2", "mp-bf16"])
def test_batchnorm_that_stays_in_float32_is_a_group_of_its_own(
    rank_group: Any, make_image: Any, precision: str
) -> None:
    recipe = Recipe(parallel="fsdp:2", precision=precision)

    names, _ = rank_group(2, groups_and_shares, make_image(), recipe)[0]

    assert names == ["", "first", "first.1", "second", "second.1", "third", "fourth"]


class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 4))


class Tied(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4))
        self[2].weight = self[1].weight


@pytest.mark.parametrize(
    ("build_model", "blocks", "groups"),
    [
        (Tied, list, ["", "0", "3"]),
        (Tied, lambda model: [model], [""]),
        (Tied, None, [""]),
    ],
    ids=["tied weight", "the model itself", "no blocks"],
)
def test_parameters_outside_of_every_group_belong_to_the_root(
    rank_group: Any, make_image: Any, build_model: Any, blocks: Any, groups: list[str]
) -> None:
    workload = make_image(build_model=build_model, blocks=blocks)

    names, _ = rank_group(2, groups_and_shares, workload, Recipe(parallel="fsdp:2"))[0]

    assert names == groups


def test_a_tied_weight_gets_the_gradients_of_both_uses(
    train_on_ranks: Any, reference: Any, worst_error: Any, make_image: Any
) -> None:
    workload = make_image(build_model=Tied, blocks=list)
    recipe = Recipe(parallel="fsdp:2")

    runs = train_on_ranks(workload, recipe)

    assert worst_error(runs[0].gradients, reference(workload, recipe).gradients) == 0.0


def test_hybrid_ranks_hold_one_shard_of_each_copy(rank_group: Any, make_text: Any) -> None:
    recipe = Recipe(parallel="hsdp:2x1")

    _, share = rank_group(2, groups_and_shares, make_text(), recipe)[0]

    assert share == 1.0


def test_accumulation_reduces_in_the_last_micro_batch_alone(
    rank_group: Any, make_image: Any
) -> None:
    counts = rank_group(2, collectives_of_each_micro_batch, make_image())[0]

    reductions = [
        sum(n for name, n in count.items() if "reduce_scatter" in name) for count in counts
    ]
    # The root has no parameters of its own, the four blocks are a group each.
    assert reductions == [0, 0, 4]


@pytest.mark.parametrize(("parallel", "num_gathers"), [("fsdp:2", 8), ("zero2:2", 4)])
def test_zero2_gathers_the_parameters_in_forward_alone(
    rank_group: Any, make_image: Any, parallel: str, num_gathers: int
) -> None:
    # Four blocks, each a group: FSDP frees them after forward and gathers them again.
    assert rank_group(2, num_gathers_of_a_step, make_image(), parallel) == [num_gathers] * 2


# HSDP also sums up the gradients of each rank's shard, over the ranks that have the same.
@pytest.mark.parametrize(("parallel", "share_summed"), [("fsdp:2", 0), ("hsdp:1x2", 0.5)])
def test_mixed_precision_gathers_half_the_bytes_and_reduces_as_many(
    rank_group: Any, make_image: Any, parallel: str, share_summed: float
) -> None:
    workload = make_image(build_model=Plain, blocks=list)

    fp32, mixed = (
        rank_group(2, bytes_of_a_step, workload, Recipe(parallel=parallel, precision=precision))
        for precision in ("fp32", "mp-bf16")
    )

    # Each layer is gathered for forward and for backward, and its gradients are reduced.
    whole = 4 * ((16 * 16 + 16) + (16 * 4 + 4))
    assert fp32 == [(2 + 1 + share_summed) * whole] * 2
    assert mixed == [(2 / 2 + 1 + share_summed) * whole] * 2


@pytest.mark.parametrize("parallel", ["fsdp:2", "hsdp:2x1"])
def test_mixed_precision_has_a_float32_loss_and_steps_float32_weights(
    rank_group: Any, make_image: Any, parallel: str
) -> None:
    dtypes = rank_group(2, dtypes_of_a_step, make_image(), parallel)

    assert dtypes == [[torch.float32]] * 2


def test_a_sharded_model_is_evaluated_as_a_whole(rank_group: Any, make_image: Any) -> None:
    first, second = rank_group(2, evaluate, make_image())

    before, _, after = first
    assert first == second
    assert before != after
