from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from perfsuite import Recipe, RecipeError, Workload
from perfsuite.worker.training.parallel.tensor_parallel import TensorParallel, plan_layers
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")
EPS = torch.finfo(torch.float32).eps


class Subclass(nn.Linear):
    """Might compute something else."""


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight


def styles(model: nn.Module, size: int) -> dict[str, str]:
    plan = plan_layers(model, size)
    return {
        name: type(plan[module]).__name__
        for name, module in model.named_modules()
        if module in plan
    }


def placements_and_groups(workload: Workload) -> tuple[dict[str, Any], list[set[bool]]]:
    trainer = build_trainer(workload, Recipe(parallel="tp:2"), device=CPU, seed=1)
    placements = {
        name: parameter.placements[0]
        for name, parameter in trainer.module.named_parameters()
        if isinstance(parameter, DTensor)
    }
    groups = [
        {isinstance(parameter, DTensor) for parameter in group["params"]}
        for group in trainer.optimizer.param_groups
    ]
    return placements, groups


# The split layers sum in another order, so agreement is to rounding in the dtype of the products.
@pytest.mark.parametrize(
    ("precision", "checkpointing", "limit"),
    [
        ("fp32", "none", 8 * EPS),
        ("fp32", "selective", 8 * EPS),
        ("amp-bf16", "every-block", torch.finfo(torch.bfloat16).eps),
        ("O2", "segments:2", 4 * torch.finfo(torch.float16).eps),
    ],
)
def test_two_ranks_compute_one_batch_as_one_process_does(
    train_on_ranks: Any,
    reference: Any,
    worst_error: Any,
    make_text: Any,
    precision: str,
    checkpointing: str,
    limit: float,
) -> None:
    workload = make_text(dropout=0.2)
    recipe = Recipe(
        parallel="tp:2",
        precision=precision,
        checkpointing=checkpointing,
        grad_accumulation_steps=2,
        clip_grad_norm=0.1,
    )

    first, second = train_on_ranks(workload, recipe)

    expected = reference(workload, recipe)
    assert 0.0 < worst_error(first.gradients, expected.gradients) < limit
    assert worst_error(first.gradients, second.gradients) == 0.0
    assert worst_error([first.parameters], [second.parameters]) == 0.0
    assert first.losses == second.losses


def test_weights_are_split_and_stepped_apart_from_whole_ones(
    rank_group: Any, make_image: Any
) -> None:
    placements, groups = rank_group(2, placements_and_groups, make_image())[0]

    assert placements["third.0.weight"] == Shard(0)
    assert placements["third.2.weight"] == Shard(1)
    assert placements["fourth.weight"] == Shard(0)
    assert groups == [{False}, {True}]


def test_a_pair_around_an_elementwise_activation_is_split_without_a_gather() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))

    plan = plan_layers(model, 2)

    assert styles(model, 2) == {
        "0": "ColwiseParallel",
        "2": "RowwiseParallel",
        "4": "ColwiseParallel",
    }
    assert isinstance(plan[model[0]], ColwiseParallel)
    assert isinstance(plan[model[2]], RowwiseParallel)


def test_dropout_between_two_layers_keeps_them_whole_in_between() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 6))

    assert styles(model, 2) == {"0": "ColwiseParallel", "2": "ColwiseParallel"}


@pytest.mark.parametrize(
    "model",
    [
        Tied(),
        nn.Sequential(Subclass(4, 8)),
        nn.Sequential(nn.Linear(4, 7)),
        nn.MultiheadAttention(8, 2),
    ],
    ids=["shared weight", "subclass", "odd width", "weight used by its parent"],
)
def test_a_layer_that_is_not_safe_to_split_stays_whole(model: nn.Module) -> None:
    assert styles(model, 2) == {}


@pytest.mark.parametrize(
    ("model", "parallel", "reason"),
    [
        (nn.Linear(4, 9), "tp:2", "has widths 9; use ddp:2"),
        (nn.Linear(4, 10), "tp:4", "has widths 10; use tp:2"),
        (nn.Conv2d(1, 4, 3), "tp:2", "has no such layer; use ddp:2"),
    ],
)
def test_a_model_without_a_layer_to_split_is_refused(
    make_image: Any, model: nn.Module, parallel: str, reason: str
) -> None:
    recipe = Recipe(parallel=parallel)

    expected = (
        f"parallel {parallel!r} needs an nn.Linear whose out_features are divisible by "
        f"{recipe.plan.size} and whose weight no other module shares; workload 'image' {reason}"
    )
    with pytest.raises(RecipeError, match=f"^{re.escape(expected)}$"):
        TensorParallel(make_image(), recipe, CPU).split(model)


def test_segments_through_a_split_layer_are_refused(make_image: Any) -> None:
    workload = make_image()
    recipe = Recipe(parallel="tp:2", checkpointing="segments:2")

    expected = (
        "checkpointing 'segments:2' cannot be combined with parallel 'tp:2' where a block is "
        "itself a split nn.Linear; use checkpointing='every-block'"
    )
    with pytest.raises(RecipeError, match=f"^{re.escape(expected)}$"):
        TensorParallel(workload, recipe, CPU).split(workload.build_model())
