"""A small RoBERTa-like encoder fine-tuned on sentence pairs, in full or through LoRA.

Built like Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019: learned
positions, each sublayer's sum normalised after it (post-LN), a head on the first token.

Weights and sentences are drawn. The class of a pair is the topic of its first sentence; the other
has another topic, so that only their order tells two classes apart.
Shapes: B sequences of a batch, T tokens, D width, C classes.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from perfsuite.records.workload import Split, Workload
from perfsuite.worker.workloads.splits import SYNTHETIC_SEED, SYNTHETIC_SIZES, take_split

NUM_TOPICS = 4
WORDS_PER_TOPIC = 32
SENTENCE_LENGTH = 31
CLASS_TOKEN, SEPARATOR_TOKEN, FIRST_WORD = 0, 1, 2

VOCABULARY_SIZE = FIRST_WORD + NUM_TOPICS * WORDS_PER_TOPIC
# The class token, a sentence, a separator, a sentence.
SEQUENCE_LENGTH = 2 + 2 * SENTENCE_LENGTH

# The other words come from all topics. A model learns the task within 100 steps of 8 pairs.
_SHARE_OF_WORDS_ON_TOPIC = 0.9

WIDTH = 128
NUM_HEADS = 4
NUM_LAYERS = 4
DROPOUT = 0.1
# BERT's and RoBERTa's initializer_range: standard deviation of all weights before training.
_INITIAL_STD = 0.02

# RoBERTa's LoRA in Hu et al. (2021), section 5.2 and table 9: query and value, rank 8; alpha is
# twice the rank, the usual choice.
LORA_NAMES = ("query", "value")
LORA_RANK = 8
LORA_ALPHA = 16

# One step takes about 55 ms on one core of 2025.
_MICRO_BATCH_SIZE = 8
# The loss falls below 0.3 within 100 steps from each of four seeds; at 1e-3 from one of them.
_LEARNING_RATE = 5e-4
# A random base needs larger steps. Loss after 100, from 1.4: 1.2 at 1e-3, 0.3 at 3e-3, 1.1 at 1e-2.
_LORA_LEARNING_RATE = 3e-3
# Llama 2's own (Touvron et al. 2023, section 2.2); torch's default of 1e-8 is 0 in float16, and
# RoBERTa's 1e-6 makes steps so long that O3 diverges within 6 of them from 3 of 12 seeds.
_EPSILON = 1e-5


class Embeddings(nn.Module):
    """Learned embeddings of tokens and of their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY_SIZE, WIDTH)
        self.position = nn.Embedding(SEQUENCE_LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

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

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (B, T, D) for (B, T, D)."""
        parts = self.query, self.key, self.value
        query, key, value = (_split_heads(part(hidden)) for part in parts)
        dropout = DROPOUT if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))


def _split_heads(projected: Tensor) -> Tensor:
    """(B, T, heads * head width) -> (B, heads, T, head width)."""
    return projected.view(*projected.shape[:2], -1, WIDTH // NUM_HEADS).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer perceptron, each added and then normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.attention_norm = nn.LayerNorm(WIDTH)
        widening, narrowing = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(widening, nn.GELU(), narrowing)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (B, T, D) for (B, T, D)."""
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden)))
        return cast(Tensor, self.mlp_norm(hidden + self.dropout(self.mlp(hidden))))


class ClassificationHead(nn.Module):
    """A two-layer classifier of the first token."""

    def __init__(self) -> None:
        super().__init__()
        first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, NUM_TOPICS)
        drops = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.classifier = nn.Sequential(drops[0], first, nn.Tanh(), drops[1], last)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return class scores (B, C) for hidden states (B, T, D)."""
        return cast(Tensor, self.classifier(hidden[:, 0]))


class LoRALinear(nn.Module):
    """A linear layer W0 with a trainable update: W0 x + (alpha / rank) B A x.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, equation 3. A is `down`;
    B is `up`, zero, so that at the start the output is the base's.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, LORA_RANK, bias=False)
        self.up = nn.Linear(LORA_RANK, base.out_features, bias=False)
        # As in the authors' loralib, Linear.reset_parameters.
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (..., features out) for (..., features in)."""
        outputs: Tensor = self.base(inputs) + LORA_ALPHA / LORA_RANK * self.up(self.down(inputs))
        return outputs


def add_lora(model: nn.Module) -> None:
    """Freeze all of `model`, and put a trainable LoRA beside query and value layers, in place."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in LORA_NAMES and isinstance(child, nn.Linear):
                setattr(parent, name, LoRALinear(child))


def build_transformer() -> nn.Sequential:
    """Return a chain: embeddings, layer0, layer1, ..., head; (B, T) int64 -> (B, C)."""
    chain = OrderedDict[str, nn.Module](embeddings=Embeddings())
    chain.update({f"layer{index}": EncoderLayer() for index in range(NUM_LAYERS)})
    chain["head"] = ClassificationHead()
    return nn.Sequential(chain).apply(_initialize)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INITIAL_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def build_transformer_with_lora() -> nn.Sequential:
    """Return `build_transformer()` frozen, with LoRA on query and value and a trainable head."""
    model = build_transformer()
    add_lora(model)
    model.get_submodule("head").requires_grad_(True)
    return model


def encoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the equal layers of the chain, in order."""
    return [child for child in model.children() if isinstance(child, EncoderLayer)]


def sentence_pairs(split: Split) -> TensorDataset:
    """Return ((64,) int64 tokens, topic of the first sentence) pairs of one of three parts."""
    generator = torch.Generator().manual_seed(SYNTHETIC_SEED)
    num_pairs = sum(SYNTHETIC_SIZES.values())
    first = torch.randint(NUM_TOPICS, (num_pairs, 1), generator=generator)
    offset = torch.randint(1, NUM_TOPICS, (num_pairs, 1), generator=generator)
    second = (first + offset) % NUM_TOPICS
    before = F.pad(_sentences(first, generator), (1, 0), value=CLASS_TOKEN)
    after = F.pad(_sentences(second, generator), (1, 0), value=SEPARATOR_TOKEN)
    return take_split(split, SYNTHETIC_SIZES, torch.cat([before, after], dim=1), first.squeeze(1))


def _sentences(topics: Tensor, generator: torch.Generator) -> Tensor:
    """Return (N, SENTENCE_LENGTH) words for topics (N, 1)."""
    shape = (len(topics), SENTENCE_LENGTH)
    on_topic = torch.rand(shape, generator=generator) < _SHARE_OF_WORDS_ON_TOPIC
    any_topic = torch.randint(NUM_TOPICS, shape, generator=generator)
    word = torch.randint(WORDS_PER_TOPIC, shape, generator=generator)
    return FIRST_WORD + WORDS_PER_TOPIC * torch.where(on_topic, topics, any_topic) + word


def _workload(name: str, build_model: Callable[[], nn.Module], learning_rate: float) -> Workload:
    return Workload(
        name=name,
        build_model=build_model,
        build_dataset=sentence_pairs,
        loss=F.cross_entropy,
        build_optimizer=partial(AdamW, lr=learning_rate, eps=_EPSILON),
        blocks=encoder_layers,
        micro_batch_size=_MICRO_BATCH_SIZE,
    )


# All 0.84 M weights are trained.
transformer_tiny = partial(_workload, "transformer-tiny", build_transformer, _LEARNING_RATE)
# Trains the LoRA weights and the head. At one seed base and first output are "transformer-tiny"'s.
transformer_tiny_lora = partial(
    _workload, "transformer-tiny-lora", build_transformer_with_lora, _LORA_LEARNING_RATE
)
