"""A transformer encoder with a classification head, built like RoBERTa.

Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019: learned positions,
each sublayer's sum normalised after it (post-LN), a head on the first token. Shapes: B sequences of
a batch, T tokens, D width, C classes.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

# BERT's and RoBERTa's initializer_range: standard deviation of all weights before training.
_INITIAL_STD = 0.02


class Embeddings(nn.Module):
    """Learned embeddings of tokens and of their positions."""

    def __init__(
        self, *, vocabulary_size: int, max_length: int, width: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary_size, width)
        self.position = nn.Embedding(max_length, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the normalised sum of both embeddings (B, T, D) of int64 tokens (B, T)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.dropout(self.norm(self.token(tokens) + self.position(positions)))
        return embedded


class SelfAttention(nn.Module):
    """Multi-head self-attention of every token to every token.

    The number of heads follows from the projections' outputs: where query, key and value are split
    by columns and output by rows, each part attends with its own heads.
    """

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width = width // num_heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (B, T, D) for (B, T, D)."""
        mixed = F.scaled_dot_product_attention(
            self._split_heads(self.query(hidden)),
            self._split_heads(self.key(hidden)),
            self._split_heads(self.value(hidden)),
            dropout_p=self.dropout if self.training else 0.0,
        )
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return projected

    def _split_heads(self, projected: Tensor) -> Tensor:
        """(B, T, heads * head width) -> (B, heads, T, head width)."""
        batch_size, length, _ = projected.shape
        return projected.view(batch_size, length, -1, self.head_width).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer perceptron, each added and then normalised."""

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, num_heads=num_heads, dropout=dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.mlp_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (B, T, D) for (B, T, D)."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden)))
        normalised: Tensor = self.mlp_norm(hidden + self.dropout(self.mlp(hidden)))
        return normalised


class ClassificationHead(nn.Module):
    """A two-layer classifier of the first token."""

    def __init__(self, *, width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(width, num_classes),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return class scores (B, C) for hidden states (B, T, D)."""
        scores: Tensor = self.classifier(hidden[:, 0])
        return scores


def build_encoder(
    *,
    vocabulary_size: int,
    max_length: int,
    num_classes: int,
    width: int,
    num_heads: int,
    num_layers: int,
    dropout: float,
) -> nn.Sequential:
    """Return a chain: embeddings, layer0, layer1, ..., head; (B, T) int64 -> (B, C)."""
    chain: dict[str, nn.Module] = {
        "embeddings": Embeddings(
            vocabulary_size=vocabulary_size, max_length=max_length, width=width, dropout=dropout
        )
    }
    for index in range(num_layers):
        chain[f"layer{index}"] = EncoderLayer(width=width, num_heads=num_heads, dropout=dropout)
    chain["head"] = ClassificationHead(width=width, num_classes=num_classes, dropout=dropout)
    model = nn.Sequential(OrderedDict(chain))
    model.apply(_initialize)
    return model


def encoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the equal layers of the chain, in order."""
    return [child for child in model.children() if isinstance(child, EncoderLayer)]


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INITIAL_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
