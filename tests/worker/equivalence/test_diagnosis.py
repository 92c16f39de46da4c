from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from perfsuite.records.recipe import Recipe
from perfsuite.worker.equivalence.comparison import Discrepancy
from perfsuite.worker.equivalence.diagnosis import (
    explain_batchnorm,
    explain_gradients,
    explain_non_finite,
    explain_ranks,
    explain_weights,
)
from perfsuite.worker.equivalence.planted_bugs import (
    Bug,
    gradient_bugs,
    lost_micro_batch,
    mean_of_means,
    reduction_bugs,
    wrong_scale,
)

GENERATOR = torch.Generator().manual_seed(4)
SHARES = [
    {name: torch.randn(size, generator=GENERATOR) for name, size in (("a", 40), ("b", 5))}
    for _ in range(3)
]
EXPECTED = {name: sum(share[name] for share in SHARES) / 3 for name in ("a", "b")}
OTHER = {name: torch.randn(tensor.shape, generator=GENERATOR) for name, tensor in EXPECTED.items()}
BUGS = [
    *reduction_bugs(SHARES, "none"),
    lost_micro_batch({name: 0.5 * tensor + 1 for name, tensor in EXPECTED.items()}, "last"),
    mean_of_means({name: tensor.flip(0) for name, tensor in EXPECTED.items()}),
    wrong_scale(EXPECTED, 3),
    *gradient_bugs(EXPECTED),
]


def evidence(**fields: Any) -> Discrepancy:
    defaults: dict[str, Any] = {"what": "gradient", "step": 1, "formula": "2 u", "error": 1.0}
    return Discrepancy(limit=0.1, **{**defaults, **fields})


def explain(tested: dict[str, Tensor], bugs: list[Bug] = BUGS) -> str | None:
    return explain_gradients(tested, EXPECTED, bugs)


@pytest.mark.parametrize("bug", BUGS[:-3], ids=lambda bug: bug.name)
def test_a_path_with_a_known_bug_is_explained_by_it_in_spite_of_rounding(bug: Bug) -> None:
    tested = {name: tensor.double() * (1 + 1e-6) for name, tensor in bug.gradients.items()}

    assert explain(tested) == bug.cause


def test_of_bugs_that_differ_by_the_rounding_of_bfloat16_the_first_is_named() -> None:
    summed = Bug("sum", "the loss sums", {name: 3 * one for name, one in EXPECTED.items()})
    rounded = {name: one.bfloat16().float() for name, one in summed.gradients.items()}
    exact = Bug("means", "a mean of means", rounded)

    assert explain(rounded, [summed, exact]) == "the loss sums"
    assert explain(EXPECTED | {"a": 2 * EXPECTED["a"]}, [summed, exact]) is None


def test_a_shifted_gradient_is_explained() -> None:
    tested = {**EXPECTED, "a": EXPECTED["a"].roll(1)}

    assert explain(tested) == "the gradient of 'a' is written to the wrong place"


def test_twice_the_gradient_is_a_sum_in_place_of_a_mean() -> None:
    assert explain({name: 2 * tensor for name, tensor in EXPECTED.items()}) == (
        "gradients are summed where they are to be averaged, or reduced twice"
    )


@pytest.mark.parametrize(
    ("factor", "text"),
    [(3.0, "3"), (0.5, "0.5"), (-1.0, "-1"), (65536.0, "65536"), (1.0001, "1.0001")],
)
def test_any_other_factor_is_named(factor: float, text: str) -> None:
    tested = {name: factor * tensor for name, tensor in EXPECTED.items()}

    assert explain(tested, []) == (
        f"all gradients are {text} times what they should be: is one scaled or clipped?"
    )


@pytest.mark.parametrize("zero", [True, False])
def test_lost_gradients_are_named(zero: bool) -> None:
    tested = {**EXPECTED, "b": torch.zeros(5)} if zero else {"a": EXPECTED["a"]}

    assert explain(tested) == "the gradient of 'b' is lost: is it detached?"


def test_of_many_lost_gradients_three_are_named() -> None:
    expected = {name: torch.ones(2) for name in "abcde"}

    explained = explain_gradients({"a": torch.ones(2)}, expected, [])

    assert explained == "the gradient of 'b', 'c', 'd' is lost: is it detached?"


def test_a_gradient_that_is_zero_anyhow_is_not_lost() -> None:
    expected = {**EXPECTED, "frozen": torch.zeros(3)}
    tested = {name: 3 * tensor for name, tensor in EXPECTED.items()}

    assert explain_gradients(tested, expected, []) == (
        "all gradients are 3 times what they should be: is one scaled or clipped?"
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_named_first(bad: float) -> None:
    tested = {"a": torch.full((40,), bad)}

    assert explain(tested) == (
        "a gradient is not finite: lower the learning rate, or use a precision with more range "
        "that scales the loss or steps float32 weights (amp-bf16, amp-fp16, O2)"
    )


def test_what_no_known_bug_explains_is_left_open() -> None:
    assert explain(OTHER) is None
    assert explain(OTHER, []) is None


def test_half_an_explanation_is_none() -> None:
    tested = {
        name: tensor + 0.5 * (SHARES[0][name] - tensor) + 0.3 * OTHER[name]
        for name, tensor in EXPECTED.items()
    }

    assert explain(tested) is None


@pytest.mark.parametrize(("factor", "noise", "is_told"), [(0.01, 0.05, True), (100.0, 20.0, False)])
def test_a_factor_is_named_where_it_leaves_little_of_the_error(
    factor: float, noise: float, is_told: bool
) -> None:
    size = math.hypot(*(float(tensor.norm()) for tensor in EXPECTED.values()))
    off = size / math.hypot(*(float(tensor.norm()) for tensor in OTHER.values()))
    tested = {
        name: factor * tensor + noise * off * OTHER[name] for name, tensor in EXPECTED.items()
    }

    assert (explain(tested, []) is not None) == is_told


def test_equal_gradients_need_no_explanation() -> None:
    assert explain(EXPECTED) is None


def test_nothing_is_explained_where_all_is_zero() -> None:
    zeros = {"a": torch.zeros(3)}

    assert explain_gradients({"a": torch.ones(3)}, zeros, []) is None
    assert explain_gradients(zeros, {"a": torch.ones(3)}, []) is None


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (
            {"what": "buffer", "rank": 1},
            "BatchNorm, or another forward pass with side effects: each rank keeps the statistics "
            "of its own data; use SyncBatchNorm or GroupNorm",
        ),
        ({"what": "buffer"}, None),
        ({"what": "gradient", "rank": 1}, None),
        ({"what": "loss"}, None),
        (
            {"what": "parameter", "rank": 1},
            "no synchronisation: the ranks step by other gradients or settings, or not together",
        ),
        (
            {"what": "parameter", "step": 0, "rank": 1},
            "the ranks begin with other weights: seed them alike, or broadcast the first rank's",
        ),
        (
            {"what": "parameter", "step": 0},
            "the run does not start from the weights that build_model gives under its seed: are "
            "they drawn from a generator of their own?",
        ),
        (
            {"what": "parameter", "step": 1},
            "the optimizer's step does not follow from the gradients: a norm over one rank's part, "
            "state that another process shares, stale master weights, or a clip before unscaling",
        ),
    ],
)
def test_weights_are_explained_by_what_they_differ_from(
    fields: dict[str, Any], cause: str | None
) -> None:
    assert explain_weights(evidence(**fields)) == cause


@pytest.mark.parametrize(
    ("layer", "is_batchnorm"),
    [
        (nn.BatchNorm1d(2), True),
        (nn.BatchNorm2d(2), True),
        (nn.BatchNorm3d(2), True),
        (nn.SyncBatchNorm(2), False),
        (nn.GroupNorm(1, 2), False),
        (nn.LayerNorm(2), False),
        (nn.InstanceNorm2d(2), False),
    ],
)
def test_a_batchnorm_is_found_at_any_depth(layer: nn.Module, is_batchnorm: bool) -> None:
    found = explain_batchnorm(nn.Sequential(nn.ReLU(), nn.Sequential(layer)))

    assert (found is not None) == is_batchnorm


def test_an_infinite_weight_in_float32_is_told_with_its_step() -> None:
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)

    assert explain_non_finite(torch.ones(2), optimizer, 3) is None
    assert explain_non_finite(torch.tensor([math.inf, 1.0]), optimizer, 3) == (
        "1 of its 2 values are infinite or NaN after step 3: lower the learning rate, or clip "
        "gradients (clip_grad_norm)"
    )


@pytest.mark.parametrize(
    ("axis", "what", "is_told"),
    [
        ("dp", "loss", False),  # of other samples it is another
        ("dp", "gradient", True),
        ("tp", "loss", True),
        ("tp", "gradient", True),
    ],
)
def test_ranks_that_share_no_samples_need_not_have_the_same_loss(
    axis: str, what: str, is_told: bool
) -> None:
    cause = explain_ranks([evidence(what=what, rank=1)], Recipe(parallel=f"mesh:{axis}=2").plan)

    told = f"the ranks along axis {axis!r} do not have the same {what}: is a reduction over it "
    assert str(cause).startswith(told) == is_told
