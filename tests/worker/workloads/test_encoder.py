from __future__ import annotations

import pytest
import torch
from perfsuite.worker.workloads.encoder import SelfAttention, build_encoder, encoder_layers
from torch import Tensor, nn


def small_encoder(dropout: float = 0.1) -> nn.Sequential:
    return build_encoder(
        vocabulary_size=20,
        max_length=6,
        num_classes=3,
        width=8,
        num_heads=2,
        num_layers=3,
        dropout=dropout,
    )


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(1))


def split_attention(whole: SelfAttention, part: slice) -> SelfAttention:
    """Return the attention with these columns of query, key and value, and rows of output."""
    split = SelfAttention(width=8, num_heads=2, dropout=0.0)
    for name in ("query", "key", "value"):
        linear = getattr(whole, name)
        half = nn.Linear(8, 4)
        half.load_state_dict({"weight": linear.weight[part], "bias": linear.bias[part]})
        setattr(split, name, half)
    split.output = nn.Linear(4, 8, bias=False)
    split.output.load_state_dict({"weight": whole.output.weight[:, part]})
    return split


def test_attention_split_by_columns_and_rows_adds_up_to_the_whole() -> None:
    torch.manual_seed(0)
    whole = SelfAttention(width=8, num_heads=2, dropout=0.0).double()
    hidden = torch.randn(2, 6, 8, dtype=torch.float64)
    halves = [split_attention(whole, part).double() for part in (slice(4), slice(4, 8))]

    added = sum(half(hidden) for half in halves) + whole.output.bias

    torch.testing.assert_close(added, whole(hidden))


def test_attention_is_the_softmax_of_scaled_products() -> None:
    torch.manual_seed(0)
    attention = SelfAttention(width=4, num_heads=1, dropout=0.0).double()
    hidden = torch.randn(1, 3, 4, dtype=torch.float64)
    query, key, value = (getattr(attention, name)(hidden[0]) for name in ("query", "key", "value"))

    weights = (query @ key.T / 4**0.5).softmax(dim=1)

    torch.testing.assert_close(attention(hidden)[0], attention.output(weights @ value))


def test_the_order_of_the_tokens_changes_the_scores(tokens: Tensor) -> None:
    torch.manual_seed(0)
    model = small_encoder().eval()
    swapped = tokens[:, [0, 2, 1, 3, 4, 5]]

    assert not torch.allclose(model(tokens), model(swapped), atol=1e-6)


def test_dropout_is_on_in_training_and_off_in_evaluation(tokens: Tensor) -> None:
    torch.manual_seed(0)
    model = small_encoder()

    trained = [model(tokens) for _ in range(2)]
    model.eval()
    evaluated = [model(tokens) for _ in range(2)]

    assert not torch.equal(*trained)
    assert torch.equal(*evaluated)


def test_attention_drops_weights_in_training_alone() -> None:
    torch.manual_seed(0)
    attention = SelfAttention(width=8, num_heads=2, dropout=0.5)
    hidden = torch.randn(2, 6, 8)

    assert not torch.equal(attention(hidden), attention(hidden))
    attention.eval()
    assert torch.equal(attention(hidden), attention(hidden))


def test_the_weights_begin_as_roberta_begins_them() -> None:
    torch.manual_seed(0)
    model = small_encoder()

    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weights = torch.cat([linear.weight.flatten() for linear in linears])
    assert all(not linear.bias.any() for linear in linears)
    assert weights.std().item() == pytest.approx(0.02, rel=0.1)


def test_the_layers_are_those_between_embeddings_and_head() -> None:
    model = small_encoder()

    assert [name for name, _ in model.named_children()] == [
        "embeddings",
        "layer0",
        "layer1",
        "layer2",
        "head",
    ]
    assert encoder_layers(model) == list(model.children())[1:-1]
