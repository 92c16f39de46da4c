from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from perfsuite.worker.training.batches import call_model, cast_floating, copy_to_device, map_tensors

Pair = namedtuple("Pair", "left right")


class Recording(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@pytest.mark.parametrize(
    ("inputs", "args", "kwargs"),
    [
        ("one", ("one",), {}),
        (("a", "b"), ("a", "b"), {}),
        (["a", "b"], ("a", "b"), {}),
        ({"ids": "a", "mask": "b"}, (), {"ids": "a", "mask": "b"}),
    ],
)
def test_inputs_reach_the_model_as_the_contract_says(inputs: Any, args: Any, kwargs: Any) -> None:
    assert call_model(Recording(), inputs) == (args, kwargs)


def test_a_nest_keeps_its_shape_and_its_other_values() -> None:
    one = torch.ones(1)
    nest = {"pair": Pair(one, "text"), "list": [one, (one, 7)]}

    doubled = map_tensors(nest, lambda tensor: 2 * tensor)

    assert doubled["pair"] == Pair(2 * one, "text")
    assert doubled["list"] == [2 * one, (2 * one, 7)]


def test_only_floating_tensors_are_cast() -> None:
    ids, weights = torch.ones(2, dtype=torch.int64), torch.ones(2)

    cast_ids, cast_weights = cast_floating((ids, weights), torch.bfloat16)

    assert cast_ids is ids
    assert cast_weights.dtype == torch.bfloat16


def test_every_tensor_of_a_batch_is_copied_to_the_device() -> None:
    batch = [{"x": torch.ones(2)}, torch.ones(3)]

    inputs, target = copy_to_device(batch, torch.device("meta"), non_blocking=True)

    assert inputs["x"].device.type == target.device.type == "meta"
