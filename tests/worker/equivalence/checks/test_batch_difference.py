from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from perfsuite.worker.equivalence.checks.data import find_differences, is_among


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def batch() -> Any:
    """Two samples."""
    rows = torch.tensor([[1.0, math.nan], [0.0, 2.0]])
    inputs = {
        "rows": rows,
        "half": rows.bfloat16(),
        "mask": rows > 1,
        "pair": Pair(rows[:, :0], rows.clone().t()),
        "names": ["a", "b"],
        "scale": (0.5, math.nan, None, 3),
        "mean": torch.tensor(7),
    }
    return [inputs, torch.tensor([4, 5])]


def test_equal_bits_are_equal_in_lists_and_tuples_alike() -> None:
    inputs, target = batch()

    assert find_differences([batch()], [(inputs, target)], 2) == []
    assert find_differences([([], [])], [((), ())], 2) == []
    assert is_among(batch(), [([], []), (inputs, target)])


def test_more_may_be_expected_than_there_is() -> None:
    assert find_differences([batch()], [batch(), None], 2) == []


def with_nan_of_other_bits(inputs: Any) -> None:
    inputs["rows"].view(torch.int32)[0, 1] ^= 1


def with_negative_zero(inputs: Any) -> None:
    inputs["rows"][1, 0] = -0.0


def with_another_mask(inputs: Any) -> None:
    inputs["mask"] ^= True


def with_another_dtype(inputs: Any) -> None:
    inputs["half"] = inputs["half"].half()


def with_another_shape(inputs: Any) -> None:
    inputs["pair"] = Pair(inputs["pair"].left, inputs["pair"].right[:, :1])


def with_another_name(inputs: Any) -> None:
    inputs["names"][1] = "c"


def with_another_number(inputs: Any) -> None:
    inputs["scale"] = (0.5, math.nan, None, 3.0)


def with_another_scalar(inputs: Any) -> None:
    inputs["mean"] += 1


def with_another_key(inputs: Any) -> None:
    inputs["rest"] = inputs.pop("mean")


def with_two_parts_changed(inputs: Any) -> None:
    inputs["rows"][0, 0] = 9
    inputs["pair"].right[1, 1] = 9


@pytest.mark.parametrize(
    ("change", "place", "num_samples"),
    [
        (with_nan_of_other_bits, "inputs['rows']", 1),
        (with_negative_zero, "inputs['rows']", 1),
        (with_another_mask, "inputs['mask']", 2),
        (with_another_dtype, "inputs['half']", 2),
        (with_another_shape, "inputs['pair'][1]", 2),
        (with_another_name, "inputs['names'][1]", 2),
        (with_another_number, "inputs['scale'][3]", 2),
        (with_another_scalar, "inputs['mean']", 2),
        (with_another_key, "the structure", 2),
        (with_two_parts_changed, "inputs['rows']", 2),
    ],
)
def test_what_differs_is_named_and_its_samples_counted(
    change: Any, place: str, num_samples: int
) -> None:
    changed = batch()
    change(changed[0])

    found = find_differences([batch(), changed], [batch(), batch()], 2)

    assert found == [(1, place, num_samples)]
    assert not is_among(changed, [batch()])


def test_a_target_that_differs_is_named() -> None:
    changed = batch()
    changed[1][0] = 0

    assert find_differences([changed], [batch()], 2) == [(0, "target", 1)]
