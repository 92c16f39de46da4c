from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from perfsuite.worker.equivalence.comparison import measure_errors
from perfsuite.worker.equivalence.planted_bugs import (
    Bug,
    gradient_bugs,
    lost_micro_batch,
    lost_samples,
    mean_of_means,
    reduction_bugs,
    scaled,
    wrong_scale,
)

GRADIENTS = {
    "large": torch.tensor([[3.0, 4.0], [0.0, 5.0]]),
    "middle": torch.tensor([2.0, 1.0]),
    "small": torch.tensor([0.5]),
}


def by_name(bugs: list[Bug]) -> dict[str, dict[str, list[object]]]:
    return {
        bug.name: {name: tensor.tolist() for name, tensor in bug.gradients.items()} for bug in bugs
    }


def test_any_path_may_lose_shift_or_double_its_gradients() -> None:
    large, middle, small = (tensor.tolist() for tensor in GRADIENTS.values())

    bugs = list(gradient_bugs(GRADIENTS))

    assert by_name(bugs) == {
        "the gradient of 'small', the smallest, is zero": {
            "large": large,
            "middle": middle,
            "small": [0.0],
        },
        "the gradient of 'large', the largest, is shifted by one element": {
            "large": [[5.0, 3.0], [4.0, 0.0]],
            "middle": middle,
            "small": small,
        },
        "all gradients are doubled": {
            "large": [[6.0, 8.0], [0.0, 10.0]],
            "middle": [4.0, 2.0],
            "small": [1.0],
        },
    }
    assert [bug.cause for bug in bugs] == [
        "the gradient of 'small' is lost",
        "the gradient of 'large' is written to the wrong place",
        "gradients are summed where they are to be averaged, or reduced twice",
    ]


def test_bugs_leave_the_gradients_as_they_are() -> None:
    before = {name: tensor.clone() for name, tensor in GRADIENTS.items()}

    list(gradient_bugs(GRADIENTS))
    wrong_scale(GRADIENTS, 2)
    list(reduction_bugs([GRADIENTS, GRADIENTS], "none"))

    assert all(torch.equal(GRADIENTS[name], before[name]) for name in before)


def test_only_named_parameters_lose_their_gradient() -> None:
    names = [bug.name for bug in gradient_bugs(GRADIENTS, ["large", "middle", "unknown"])]

    assert names[0] == "the gradient of 'middle', the smallest, is zero"


def test_where_none_may_be_lost_none_is() -> None:
    assert [bug.name for bug in gradient_bugs(GRADIENTS, [])] == [
        "the gradient of 'large', the largest, is shifted by one element",
        "all gradients are doubled",
    ]


def test_a_gradient_of_one_element_is_not_shifted() -> None:
    gradients = {"scale": torch.tensor([9.0]), "weight": torch.tensor([1.0, 2.0])}

    assert [bug.name for bug in gradient_bugs(gradients)] == [
        "the gradient of 'weight', the smallest, is zero",
        "the gradient of 'weight', the largest, is shifted by one element",
        "all gradients are doubled",
    ]
    assert [bug.name for bug in gradient_bugs({"scale": torch.tensor([9.0])})] == [
        "the gradient of 'scale', the smallest, is zero",
        "all gradients are doubled",
    ]


def test_a_parameter_without_a_limit_of_its_own_is_not_the_one_that_is_lost() -> None:
    gradients = {"weight": torch.tensor([1.0]), "bias": torch.tensor([1e-8])}

    lost = next(gradient_bugs(gradients))

    assert lost.name == "the gradient of 'weight', the smallest, is zero"


@pytest.mark.parametrize(("world_size", "scale"), [(1, 1.125), (2, 1.0625), (4, 1.03125)])
def test_the_smallest_wrong_scale_is_an_eighth_of_a_ranks_share(
    world_size: int, scale: float
) -> None:
    bug = wrong_scale({"a": torch.tensor([8.0], dtype=torch.bfloat16)}, world_size)

    assert bug.name == f"all gradients are {scale:g} times too large"
    assert bug.cause == "the loss or the gradients are scaled"
    # In float64, because bfloat16 would round the smallest of them away.
    assert bug.gradients["a"].tolist() == [8 * scale]
    assert bug.gradients["a"].dtype == torch.float64


def test_a_reduction_may_be_none_another_or_lack_a_rank() -> None:
    shares = [{"a": torch.tensor([value])} for value in (1.0, 2.0, 6.0)]

    bugs = list(reduction_bugs(shares, "none"))

    assert by_name(bugs) == {
        "no synchronisation: each rank keeps its own gradient": {"a": [1.0]},
        "each rank has the gradient of another": {"a": [6.0]},
        "the last rank's share is lost": {"a": [1.0]},
        "the reduction is compressed to fp16": {"a": [pytest.approx(3.0, rel=1e-3)]},
        "the reduction is compressed to bf16": {"a": [pytest.approx(3.0, rel=1e-2)]},
    }
    assert [bug.cause for bug in bugs] == [
        "the gradients are not synchronised: was the last backward inside no_sync()?",
        "a rank takes another rank's gradient for the mean",
        "a rank's share is missing from the mean",
        "the reduction is compressed to fp16: is a communication hook registered?",
        "the reduction is compressed to bf16: is a communication hook registered?",
    ]


def test_a_compressed_reduction_rounds_as_its_format_does() -> None:
    share = {"a": torch.tensor([1.0 + 2.0**-12, 2.0])}

    *_, fp16, bf16 = reduction_bugs([share, share], "none")

    assert fp16.gradients["a"].tolist() == bf16.gradients["a"].tolist() == [1.0, 2.0]
    assert fp16.gradients["a"].dtype == torch.float32


@pytest.mark.parametrize(
    ("comm_hook", "dtype", "num_bugs"),
    [
        ("none", torch.float32, 5),
        ("none", torch.float64, 5),
        ("fp16", torch.float32, 3),
        ("bf16", torch.float32, 3),
        ("powersgd", torch.float32, 3),
        ("none", torch.bfloat16, 3),
        ("none", torch.float16, 3),
    ],
)
def test_what_is_compressed_already_is_not_compressed_by_mistake(
    comm_hook: str, dtype: torch.dtype, num_bugs: int
) -> None:
    shares = [{"a": torch.ones(2, dtype=dtype)}] * 2

    assert len(list(reduction_bugs(shares, comm_hook))) == num_bugs


def test_bugs_that_are_computed_elsewhere_are_named_here() -> None:
    bugs = [
        lost_micro_batch(GRADIENTS, "first"),
        lost_micro_batch(GRADIENTS, "last"),
        mean_of_means(GRADIENTS),
        lost_samples(GRADIENTS),
    ]

    assert all(bug.gradients is GRADIENTS for bug in bugs)
    assert [(bug.name, bug.cause) for bug in bugs] == [
        ("the first micro-batch is left out", "a micro-batch of the accumulation is lost"),
        ("the last micro-batch is left out", "a micro-batch of the accumulation is lost"),
        (
            "the mean of unequal shards' means",
            "the mean over the batch is a mean of means: do shards or masks differ in size, or "
            "does the loss relate samples?",
        ),
        ("half of the batch is left out", "samples of the batch are lost"),
    ]


def test_gradients_are_scaled_in_float64() -> None:
    result = scaled({"a": torch.tensor([1.0], dtype=torch.float16)}, 1 / 3)

    assert result["a"].tolist() == [1 / 3]


elements = st.floats(2.0**-10, 2.0**10, width=32)
tensors = st.lists(elements, min_size=2, max_size=6, unique=True).map(torch.tensor)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), tensors, min_size=1), st.integers(1, 64))
def test_every_bug_of_any_path_is_far_from_the_gradients(
    gradients: dict[str, Tensor], world_size: int
) -> None:
    bugs = [*gradient_bugs(gradients), wrong_scale(gradients, world_size)]
    lost, shifted, doubled, scale = (measure_errors(bug.gradients, gradients) for bug in bugs)

    assert max(lost.by_name.values()) == 1.0
    assert shifted.total > 0
    assert doubled.total == pytest.approx(1.0)
    assert scale.total == pytest.approx(1 / (8 * world_size))
