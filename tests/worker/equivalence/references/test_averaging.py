from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from perfsuite import Recipe, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.references.averaging import average
from perfsuite.worker.training.step import compute_loss, scale_loss
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")
# Of what each hook sums in, where the gradients are in float32.
DTYPES = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# Of each step, what the rank computed by itself and what it held after the reduction.
Reductions = list[tuple[Tensors, Tensors]]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 37), nn.Tanh(), nn.Linear(37, 10))


def convolutions() -> nn.Module:
    first, second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
    pool = nn.MaxPool2d(2)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.Flatten(), nn.Linear(128, 10))


def one_layer() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))


class Words(nn.Module):
    """An embedding with a sparse gradient that holds words more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 10, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding((8 * x.abs().flatten(1)).long() % 20).mean(1)


def reduce_on_rank(
    build_model: Callable[[], nn.Module], recipe: Recipe, is_first_alone: bool = False
) -> Reductions:
    """Three steps; where the first is alone, the others have inputs of zero."""
    torch.set_num_threads(1)
    workload = Workload(
        name="reduced",
        build_model=build_model,
        build_dataset=lambda split: None,
        loss=functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    )
    trainer = build_trainer(workload, recipe, device=CPU, seed=1)
    parameters = dict(trainer.module.named_parameters())
    rank = trainer.strategy.shard_index
    reductions = []
    for _ in range(3):
        # Ranks draw other numbers, as they are seeded with their shard.
        inputs = torch.randn(8, 1, 8, 8) * (0 if is_first_alone and rank else 1)
        inputs = inputs.to(trainer.precision.parameter_dtype)
        target = torch.randint(10, (8,))
        loss = scale_loss(trainer, compute_loss(trainer, trainer.module(inputs), target))
        own = torch.autograd.grad(loss, list(parameters.values()))
        trainer.optimizer.zero_grad()
        trainer.strategy.run_micro_batch(trainer, inputs, target, is_last=True, stage=untimed)
        reduced = {name: parameter.grad.clone() for name, parameter in parameters.items()}
        reductions.append((dict(zip(parameters, own, strict=True)), reduced))
        trainer.optimizer.step()
    return reductions


def relative_error(tested: Tensors, expected: Tensors) -> float:
    assert tested.keys() == expected.keys()
    differences = [dense(tested[name]) - dense(expected[name]) for name in expected]
    parts = [dense(tensor) for tensor in expected.values()]
    return float(torch.cat(differences).norm() / torch.cat(parts).norm())


def dense(tensor: Tensor) -> Tensor:
    return (tensor.to_dense() if tensor.is_sparse else tensor).double().flatten()


def worst_error(ranks: list[Reductions], comm_hook: str) -> float:
    """The largest error of a step: what the first rank holds against the mean of all ranks."""
    return max(
        relative_error(steps[0][1], average([own for own, _ in steps], comm_hook))
        for steps in zip(*ranks, strict=True)
    )


@pytest.mark.parametrize("comm_hook", ["none", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (perceptron, {"bucket_cap_mb": 1e-3}),
        (convolutions, {"bucket_cap_mb": 1e-3, "gradient_as_bucket_view": True}),
        (convolutions, {"precision": "amp-bf16"}),
        (perceptron, {"precision": "bf16"}),
        (perceptron, {"precision": "O3"}),
    ],
)
def test_two_ranks_hold_the_average_bit_by_bit(
    rank_group: Any, model: Any, options: dict[str, Any], comm_hook: str
) -> None:
    recipe = Recipe(parallel="ddp:2", comm_hook=comm_hook, **options)

    ranks = rank_group(2, reduce_on_rank, model, recipe)

    assert worst_error(ranks, comm_hook) == 0.0


@pytest.mark.parametrize("comm_hook", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("world_size", [3, 4])
def test_more_ranks_hold_the_average_up_to_the_order_of_the_sum(
    rank_group: Any, world_size: int, comm_hook: str
) -> None:
    recipe = Recipe(parallel=f"ddp:{world_size}", comm_hook=comm_hook, bucket_cap_mb=1e-3)

    ranks = rank_group(world_size, reduce_on_rank, convolutions, recipe)

    epsilon = torch.finfo(DTYPES[comm_hook]).eps
    assert worst_error(ranks, comm_hook) < 2 * epsilon * world_size**0.5


@pytest.mark.parametrize("comm_hook", ["none", "fp16", "bf16"])
def test_a_share_of_a_third_is_rounded_as_the_ranks_round_it(
    rank_group: Any, comm_hook: str
) -> None:
    recipe = Recipe(parallel="ddp:3", comm_hook=comm_hook)

    ranks = rank_group(3, reduce_on_rank, one_layer, recipe, True)

    # Nothing is added to the first rank's share but zeros, so no order of a sum can matter.
    assert worst_error(ranks, comm_hook) == 0.0


def test_the_reducer_does_not_divide(rank_group: Any) -> None:
    ranks = rank_group(3, reduce_on_rank, one_layer, Recipe(parallel="ddp:3"), True)

    # "powersgd" divides, where it does not compress; a third is not what a product with it gives.
    assert 0 < worst_error(ranks, "powersgd") < torch.finfo(torch.float32).eps


@pytest.mark.parametrize("comm_hook", ["none", "bf16"])
def test_sparse_gradients_are_averaged_row_by_row(rank_group: Any, comm_hook: str) -> None:
    recipe = Recipe(parallel="ddp:2", comm_hook=comm_hook)

    ranks = rank_group(2, reduce_on_rank, Words, recipe)

    assert ranks[0][0][1]["embedding.weight"].is_sparse
    assert worst_error(ranks, comm_hook) == 0.0


@pytest.mark.parametrize(("comm_hook", "smallest"), [("fp16", 1e-4), ("bf16", 1e-3)])
def test_a_compressed_reduction_is_not_taken_for_an_exact_one(
    rank_group: Any, comm_hook: str, smallest: float
) -> None:
    ranks = rank_group(2, reduce_on_rank, perceptron, Recipe(parallel="ddp:2", comm_hook=comm_hook))

    assert worst_error(ranks, "none") > smallest


def test_a_lost_shard_is_seen(rank_group: Any) -> None:
    ranks = rank_group(2, reduce_on_rank, perceptron, Recipe(parallel="ddp:2"))

    assert worst_error([ranks[0], ranks[0]], "none") > 0.1


def test_a_shard_without_a_gradient_counts_as_zero() -> None:
    shards = [{"a": torch.tensor([4.0])}, {"b": torch.tensor([2.0])}]

    averaged = average([*shards, {}, {}], "none")

    assert averaged == {"a": torch.tensor([1.0]), "b": torch.tensor([0.5])}


def test_averaging_leaves_the_shards_as_they_are() -> None:
    shards = [{"a": torch.tensor([4.0])}, {"a": torch.tensor([2.0])}]

    averaged = average(shards, "none")

    assert averaged == {"a": torch.tensor([3.0])}
    assert shards == [{"a": torch.tensor([4.0])}, {"a": torch.tensor([2.0])}]
