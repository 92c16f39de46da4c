from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from perfsuite.worker.workloads.transformer import (
    build_transformer,
    build_transformer_with_lora,
    sentence_pairs,
    transformer_tiny,
    transformer_tiny_lora,
)

pytestmark = pytest.mark.slow

# What is left to one who knows the words of a pair but not their order: one of two classes.
LOSS_WITHOUT_ORDER = math.log(2)


def built(build_model: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build_model()


def test_the_transformer_learns_to_read_the_order_within_100_steps(
    train: Callable[..., list[float]],
) -> None:
    losses = train(transformer_tiny(), built(build_transformer), 100)

    assert sum(losses[:10]) / 10 > 1.3  # log 4 is chance
    assert sum(losses[-10:]) / 10 < LOSS_WITHOUT_ORDER


def test_lora_and_the_head_learn_within_80_steps_and_the_frozen_base_stays(
    train: Callable[..., list[float]],
) -> None:
    model = built(build_transformer_with_lora)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    losses = train(transformer_tiny_lora(), model, 80)

    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert changed == {name for name, p in model.named_parameters() if p.requires_grad}


def test_with_lora_the_model_starts_as_the_one_without_at_the_same_seed() -> None:
    tokens = sentence_pairs("test").tensors[0][:4]

    plain, adapted = built(build_transformer).eval(), built(build_transformer_with_lora).eval()

    assert torch.equal(plain(tokens), adapted(tokens))


def test_lora_of_rank_8_sits_on_query_and_value_of_every_layer_and_the_head_trains() -> None:
    model = built(build_transformer_with_lora)

    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}

    expected = {
        f"layer{index}.attention.{name}.{matrix}.weight": shape
        for index in range(4)
        for name in ("query", "value")
        for matrix, shape in (("down", (8, 128)), ("up", (128, 8)))
    }
    expected |= {
        "head.classifier.1.weight": (128, 128),
        "head.classifier.1.bias": (128,),
        "head.classifier.4.weight": (4, 128),
        "head.classifier.4.bias": (4,),
    }
    assert shapes == expected
