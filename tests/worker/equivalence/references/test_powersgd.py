from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from perfsuite import Recipe, Workload
from perfsuite.records.stages import untimed
from perfsuite.worker.equivalence.comparison import Tensors
from perfsuite.worker.equivalence.references.averaging import PowerSGD, average
from perfsuite.worker.training.step import compute_loss, scale_loss
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")
NUM_STEPS = 6
# Of which this one is the first that is compressed.
THIRD = 2
EPS = torch.finfo(torch.float32).eps


@dataclass
class Rank:
    """What one rank saw.

    Attributes:
        parameters: After the last step.
        own: Of each step, the gradients that the rank computed by itself.
        reduced: Of each step, the gradients that it held after the reduction.
        layout: The parameters in each bucket.
    """

    parameters: Tensors
    own: list[Tensors]
    reduced: list[Tensors]
    layout: list[list[str]]


def perceptron() -> nn.Module:
    # Of odd widths, so that few columns begin where memory is aligned.
    widths = [64, 37, 53, 29, 33, 10]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def alternating() -> nn.Module:
    """Matrices of two shapes in turn, in one bucket: the hook keeps those of a shape together."""
    widths = [64, 24, 64, 24, 64, 10]
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *layers)


def wide() -> nn.Module:
    """Matrices so large that several threads would share a product, and round it otherwise."""
    widths = [64, 128, 512, 128, 10]
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *layers)


def convolutions() -> nn.Module:
    """Weights in a memory format whose strides are not those of the matrix."""
    first, second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
    pool = nn.MaxPool2d(2)
    model = nn.Sequential(first, nn.ReLU(), second, pool, nn.Flatten(), nn.Linear(192, 10))
    return model.to(memory_format=torch.channels_last)


class Moody(nn.Module):
    """One of its parameters is part of the loss only where the first number is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()
        self.extra = nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.layers(x)
        return outputs + self.extra if x.flatten()[0] > 0 else outputs


class Dead(nn.Module):
    """The gradient of its first layer is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = nn.Linear(64, 10)
        self.alive = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return 0 * self.dead(x.flatten(1)) + self.alive(x.flatten(1))


def reduce_on_rank(build_model: Callable[[], nn.Module], recipe: Recipe) -> Rank:
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
    own_of_steps, reduced_of_steps = [], []
    for _ in range(NUM_STEPS):
        trainer.optimizer.zero_grad()
        own: Tensors = {}
        for index in range(recipe.grad_accumulation_steps):
            # Ranks draw other numbers, as they are seeded with their shard.
            inputs = torch.randn(8, 1, 8, 8).to(trainer.precision.parameter_dtype)
            target = torch.randint(10, (8,))
            loss = scale_loss(trainer, compute_loss(trainer, trainer.module(inputs), target))
            parts = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for name, part in zip(parameters, parts, strict=True):
                if part is not None:
                    own[name] = own[name] + part if name in own else part
            is_last = index == recipe.grad_accumulation_steps - 1
            trainer.strategy.run_micro_batch(
                trainer, inputs, target, is_last=is_last, stage=untimed
            )
        own_of_steps.append(own)
        reduced_of_steps.append(
            {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
        )
        trainer.optimizer.step()
    return Rank(
        parameters={name: parameter.detach() for name, parameter in parameters.items()},
        own=own_of_steps,
        reduced=reduced_of_steps,
        layout=trainer.strategy.bucket_layout,
    )


def emulate(ranks: list[Rank], num_plain_steps: int = 2) -> list[Tensors]:
    emulation = PowerSGD(ranks[0].parameters, num_plain_steps=num_plain_steps)
    return [
        emulation.average([rank.own[step] for rank in ranks], ranks[0].layout)
        for step in range(NUM_STEPS)
    ]


def relative_error(tested: Tensors, expected: Tensors) -> float:
    assert tested.keys() == expected.keys()
    differences = [(tested[name].double() - expected[name]).flatten() for name in expected]
    parts = [gradient.double().flatten() for gradient in expected.values()]
    return float(torch.cat(differences).norm() / torch.cat(parts).norm())


def errors_of_steps(ranks: list[Rank], expected: list[Tensors]) -> list[float]:
    steps = zip(ranks[0].reduced, expected, strict=True)
    return [relative_error(tested, expected) for tested, expected in steps]


@pytest.fixture
def two_ranks(rank_group: Any) -> list[Rank]:
    return rank_group(2, reduce_on_rank, perceptron, powersgd(2))


def powersgd(world_size: int, **options: Any) -> Recipe:
    options = {"bucket_cap_mb": 0.01, **options}
    return Recipe(parallel=f"ddp:{world_size}", comm_hook="powersgd", **options)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (perceptron, {}),
        (perceptron, {"bucket_cap_mb": None}),
        (perceptron, {"static_graph": True}),
        (perceptron, {"gradient_as_bucket_view": True, "grad_accumulation_steps": 2}),
        (alternating, {"bucket_cap_mb": None}),
        (wide, {"bucket_cap_mb": None}),
        (convolutions, {}),
        (convolutions, {"precision": "amp-bf16"}),
        (perceptron, {"precision": "fp64"}),
        (perceptron, {"precision": "bf16"}),
        (perceptron, {"precision": "O3"}),
        (Moody, {"find_unused_parameters": True}),
    ],
)
def test_two_ranks_hold_bit_by_bit_what_is_computed_from_their_gradients(
    rank_group: Any, model: Any, options: dict[str, Any]
) -> None:
    ranks = rank_group(2, reduce_on_rank, model, powersgd(2, **options))

    assert errors_of_steps(ranks, emulate(ranks)) == [0.0] * NUM_STEPS


def test_the_cases_have_several_buckets_and_unused_parameters(rank_group: Any) -> None:
    ranks = rank_group(2, reduce_on_rank, Moody, powersgd(2, find_unused_parameters=True))

    assert len(ranks[0].layout) > 2
    uses = [tuple("extra" in rank.own[step] for rank in ranks) for step in range(NUM_STEPS)]
    assert {any(used) for used in uses[THIRD:]} == {True, False}
    assert any(len(set(used)) == 2 for used in uses[THIRD:])


def test_the_reduction_that_learns_a_static_graph_is_one_of_the_plain_ones(
    rank_group: Any,
) -> None:
    recipe = powersgd(2, static_graph=True, grad_accumulation_steps=2)

    ranks = rank_group(2, reduce_on_rank, perceptron, recipe)

    first, *others = errors_of_steps(ranks, emulate(ranks, num_plain_steps=1))
    # The first micro-batch is averaged twice in the first step.
    assert first < 2 * EPS * (2 * 2) ** 0.5
    assert others == [0.0] * (NUM_STEPS - 1)


@pytest.mark.parametrize("model", [perceptron, convolutions])
@pytest.mark.parametrize("world_size", [3, 4])
def test_more_ranks_differ_by_the_rounding_of_a_sum_that_grows_with_each_step(
    rank_group: Any, world_size: int, model: Any
) -> None:
    ranks = rank_group(world_size, reduce_on_rank, model, powersgd(world_size))

    errors = errors_of_steps(ranks, emulate(ranks))
    limit = 2 * EPS * world_size**0.5
    assert max(errors[: THIRD + 1]) < limit
    for num_compressed, error in enumerate(errors[THIRD:], start=1):
        assert error < num_compressed * limit


def test_gradients_are_compressed_from_the_third_step_on(two_ranks: list[Rank]) -> None:
    shards = [[rank.own[step] for rank in two_ranks] for step in range(NUM_STEPS)]

    errors = errors_of_steps(two_ranks, [average(shard, "none") for shard in shards])

    assert errors[:THIRD] == [0.0, 0.0]
    assert min(errors[THIRD:]) > 0.1


def test_what_was_lost_before_is_part_of_the_next_step(two_ranks: list[Rank]) -> None:
    forgetful = PowerSGD(two_ranks[0].parameters, num_plain_steps=0)

    expected = forgetful.average([rank.own[THIRD + 1] for rank in two_ranks], two_ranks[0].layout)

    assert relative_error(two_ranks[0].reduced[THIRD + 1], expected) > 0.1


def test_the_order_of_the_buckets_matters(two_ranks: list[Rank]) -> None:
    emulation = PowerSGD(two_ranks[0].parameters, num_plain_steps=0)

    expected = emulation.average([rank.own[THIRD] for rank in two_ranks], two_ranks[0].layout[::-1])

    assert relative_error(two_ranks[0].reduced[THIRD], expected) > 0.1


def test_a_gradient_off_by_a_sixteenth_is_seen(two_ranks: list[Rank]) -> None:
    for gradient in two_ranks[1].own[THIRD].values():
        gradient *= 1 + 1 / 16

    errors = errors_of_steps(two_ranks, emulate(two_ranks))

    # Feedback carries it on into all later steps.
    assert errors[:THIRD] == [0.0, 0.0]
    assert min(errors[THIRD:]) > 1e-3


def test_a_matrix_that_is_zero_on_all_ranks_becomes_nan_as_under_the_hook(rank_group: Any) -> None:
    ranks = rank_group(2, reduce_on_rank, Dead, powersgd(2))

    expected = emulate(ranks)[THIRD]
    for tensors in (ranks[0].reduced[THIRD], expected):
        assert [name for name, tensor in tensors.items() if tensor.isnan().any()] == ["dead.weight"]
    assert torch.equal(ranks[0].reduced[THIRD]["alive.weight"], expected["alive.weight"])


def test_recorded_gradients_are_averaged_on_the_models_device_and_compared_on_their_own() -> None:
    with FakeTensorMode():
        power = PowerSGD({"w": torch.empty(64, 64, device="cuda")}, num_plain_steps=0)

        reduced = power.average([{"w": torch.empty(64, 64)}] * 2, [["w"]])

    assert reduced["w"].device == CPU
