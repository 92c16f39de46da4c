from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfsuite import Recipe
from perfsuite.records.recipe import EPSILONS
from perfsuite.worker.equivalence.checks import reduction
from perfsuite.worker.equivalence.comparison import judge_alignment
from perfsuite.worker.equivalence.limits import (
    BITWISE,
    Limit,
    above_noise,
    is_low_precision,
    ratio_limit,
    reduction_limit,
    semantic_limit,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
U32 = 2.0**-23  # the epsilon of float32


@pytest.mark.parametrize(
    ("precision", "epsilon"),
    [
        ("fp64", 2.0**-52),
        ("fp32", 2.0**-23),
        ("O0", 2.0**-23),
        ("tf32", 2.0**-10),
        ("amp-fp16", 2.0**-10),
        ("O1", 2.0**-10),
        ("O2", 2.0**-10),
        ("O3", 2.0**-10),
        ("bf16", 2.0**-7),
        ("amp-bf16", 2.0**-7),
    ],
)
def test_the_epsilon_of_a_path_is_that_of_its_coarsest_arithmetic(
    precision: str, epsilon: float
) -> None:
    recipe = Recipe(precision=precision)

    assert EPSILONS[recipe.precision] == epsilon
    assert is_low_precision(recipe) == (epsilon > U32)


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
def test_two_ranks_on_a_cpu_are_held_to_equal_bits(parallel: str) -> None:
    limit = reduction_limit(U32, Recipe(parallel=parallel), CPU)

    assert limit is BITWISE
    assert limit == Limit(value=0.0, formula="bit for bit", worst_parameter=0.0)


def test_rows_that_are_added_piece_by_piece_are_not_held_to_equal_bits() -> None:
    limit = reduction_limit(U32, Recipe(parallel="ddp:2"), CPU, is_ordered=False)

    assert limit.value == pytest.approx(2 * U32 * math.sqrt(2), rel=1e-12)
    assert limit.formula == "2 u sqrt(ws A), u 1.2e-07, ws 2, A 1"


@pytest.mark.parametrize(
    ("recipe", "device", "root", "formula"),
    [
        (
            Recipe(parallel="ddp:3"),
            CPU,
            math.sqrt(3),
            "2 u sqrt(ws A), u 1.2e-07, ws 3, A 1",
        ),
        (
            Recipe(parallel="ddp:4", grad_accumulation_steps=4),
            CPU,
            4.0,
            "2 u sqrt(ws A), u 1.2e-07, ws 4, A 4",
        ),
        (
            Recipe(parallel="ddp:2", grad_accumulation_steps=2),
            CPU,
            2.0,
            "2 u sqrt(ws A), u 1.2e-07, ws 2, A 2",
        ),
        (
            Recipe(parallel="ddp:2"),
            CUDA,
            math.sqrt(2),
            "2 u sqrt(ws A), u 1.2e-07, ws 2, A 1",
        ),
    ],
)
def test_other_reductions_may_differ_by_the_order_of_their_sum(
    recipe: Recipe, device: torch.device, root: float, formula: str
) -> None:
    limit = reduction_limit(U32, recipe, device)

    assert limit.value == pytest.approx(2 * U32 * root, rel=1e-12)
    assert limit.worst_parameter == 16 * limit.value
    assert limit.formula == formula


def test_the_limit_of_a_batch_is_sixteen_epsilons_and_grows_by_the_root_of_its_parts() -> None:
    one = semantic_limit(Recipe())
    eight = semantic_limit(Recipe(parallel="ddp:4", grad_accumulation_steps=2))

    assert one == Limit(16 * U32, "16 u sqrt(ws A), u 1.2e-07, ws 1, A 1", 256 * U32)
    assert eight.value == pytest.approx(16 * U32 * math.sqrt(8), rel=1e-12)
    assert eight.formula == "16 u sqrt(ws A), u 1.2e-07, ws 4, A 2"


def test_the_limit_of_float64_is_far_below_that_of_float32() -> None:
    limit = semantic_limit(Recipe(precision="fp64"))

    assert limit.value == 16 * 2.0**-52
    assert limit.formula == "16 u sqrt(ws A), u 2.2e-16, ws 1, A 1"


def test_low_precision_may_be_twice_as_wrong_as_plain_training() -> None:
    limit = ratio_limit(0.25, 2.0**-7)

    assert limit.value == 0.5 + 2.0**-7
    assert limit.worst_parameter == 8 + 2.0**-3
    assert limit.formula == "2 times the error 2.5e-01 of plain training + 7.8e-03"


def test_every_limit_is_far_below_the_smallest_error_of_scale_that_must_be_seen() -> None:
    for precision in ("fp64", "fp32"):
        for world_size in (2, 3, 4):
            recipe = Recipe(parallel=f"ddp:{world_size}", precision=precision)
            assert semantic_limit(recipe).worst_parameter < 1 / (8 * world_size) / 100


@pytest.mark.parametrize(("world_size", "shared"), [(2, 0.0), (3, U32 / 2), (4, 0.0), (6, U32 / 2)])
def test_the_mean_over_three_ranks_is_a_product_with_a_rounded_third(
    world_size: int, shared: float
) -> None:
    limit = reduction_limit(U32, Recipe(parallel=f"ddp:{world_size}"), torch.device("cuda"))

    assert limit.shared == shared


def test_a_rounded_third_is_within_the_limit_along_the_gradient() -> None:
    limit = reduction_limit(U32, Recipe(parallel="fsdp:3"), CPU)
    total = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    third = torch.tensor(1 / 3)

    (along,) = judge_alignment({"a": total * third}, {"a": total.double() / 3}, 1, limit)
    (doubled,) = judge_alignment({"a": total * third * 2}, {"a": total.double() / 3}, 1, limit)

    assert along.error > U32 / 16
    assert along.is_within
    assert not doubled.is_within


def test_what_a_device_does_not_repeat_is_allowed() -> None:
    limit = Limit(1e-7, "2 u", 1.6e-6)

    assert above_noise(limit, 0.0) == limit
    assert above_noise(BITWISE, 1e-6).value == pytest.approx(4e-6)


@pytest.mark.parametrize(("comm_hook", "is_within"), [("powersgd", True), ("none", False)])
def test_a_rounded_factor_of_powersgd_is_in_all_elements_of_its_matrix(
    comm_hook: str, is_within: bool
) -> None:
    column = torch.rand(64, 1, generator=torch.Generator().manual_seed(0)) + 0.5
    expected = {"weight": column @ torch.ones(1, 64)}
    tested = {"weight": (column * (1 + U32)) @ torch.ones(1, 64)}
    run: Any = SimpleNamespace(
        recipe=Recipe(parallel="ddp:4", comm_hook=comm_hook),
        device=CPU,
        noise=0.0,
        trace=SimpleNamespace(sparse={}),
    )

    limit = reduction._limit(tested, run)

    assert all(one.is_within for one in reduction._judge(tested, expected, 1, limit)) == is_within
