from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from perfsuite.worker.workloads.transformer import (
    SEQUENCE_LENGTH,
    VOCABULARY_SIZE,
    WIDTH,
    SelfAttention,
    build_transformer,
    encoder_layers,
)


@pytest.fixture
def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY_SIZE, (2, SEQUENCE_LENGTH), generator=generator)


def split_attention(whole: SelfAttention, part: slice) -> SelfAttention:
    """Return the attention with these columns of query, key and value, and rows of output."""
    split = SelfAttention()
    for name in ("query", "key", "value"):
        linear = getattr(whole, name)
        half = nn.Linear(WIDTH, WIDTH // 2)
        half.load_state_dict({"weight": linear.weight[part], "bias": linear.bias[part]})
        setattr(split, name, half)
    split.output = nn.Linear(WIDTH // 2, WIDTH, bias=False)
    split.output.load_state_dict({"weight": whole.output.weight[:, part]})
    return split


def test_attention_split_by_columns_and_rows_adds_up_to_the_whole() -> None:
    torch.manual_seed(0)
    whole = SelfAttention().double().eval()
    hidden = torch.randn(2, 6, WIDTH, dtype=torch.float64)
    parts = (slice(WIDTH // 2), slice(WIDTH // 2, WIDTH))
    halves = [split_attention(whole, part).double().eval() for part in parts]

    added = sum(half(hidden) for half in halves) + whole.output.bias

    torch.testing.assert_close(added, whole(hidden))


def test_attention_is_the_softmax_of_scaled_products_in_each_head() -> None:
    torch.manual_seed(0)
    attention = SelfAttention().double().eval()
    hidden = torch.randn(1, 3, WIDTH, dtype=torch.float64)
    query, key, value = (
        getattr(attention, name)(hidden[0]).view(3, 4, 32).transpose(0, 1)
        for name in ("query", "key", "value")
    )

    weights = (query @ key.mT / 32**0.5).softmax(dim=-1)

    mixed = (weights @ value).transpose(0, 1).flatten(1)
    torch.testing.assert_close(attention(hidden)[0], attention.output(mixed))


def test_the_order_of_the_tokens_changes_the_scores(tokens: Tensor) -> None:
    torch.manual_seed(0)
    model = build_transformer().eval()
    swapped = tokens.clone()
    swapped[:, [1, 2]] = tokens[:, [2, 1]]

    assert not torch.allclose(model(tokens), model(swapped), atol=1e-7)


def test_dropout_is_on_in_training_and_off_in_evaluation(tokens: Tensor) -> None:
    torch.manual_seed(0)
    model = build_transformer()

    trained = [model(tokens) for _ in range(2)]
    model.eval()
    evaluated = [model(tokens) for _ in range(2)]

    assert not torch.equal(*trained)
    assert torch.equal(*evaluated)


def test_attention_drops_weights_in_training_alone() -> None:
    torch.manual_seed(0)
    attention = SelfAttention()
    hidden = torch.randn(2, 6, WIDTH)

    assert not torch.equal(attention(hidden), attention(hidden))
    attention.eval()
    assert torch.equal(attention(hidden), attention(hidden))


def test_the_weights_begin_as_roberta_begins_them() -> None:
    torch.manual_seed(0)
    model = build_transformer()

    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weights = torch.cat([linear.weight.flatten() for linear in linears])
    assert all(not linear.bias.any() for linear in linears)
    assert weights.std().item() == pytest.approx(0.02, rel=0.01)


def test_the_layers_are_those_between_embeddings_and_head() -> None:
    model = build_transformer()

    layers = [f"layer{index}" for index in range(4)]
    assert [name for name, _ in model.named_children()] == ["embeddings", *layers, "head"]
    assert encoder_layers(model) == list(model.children())[1:-1]
