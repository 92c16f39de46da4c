"""A small RoBERTa-like encoder fine-tuned on sentence pairs, in full or through LoRA.

Nothing is downloaded: the encoder is randomly initialised, and the sentences are synthetic. The
class of a pair is the topic of its first sentence. The two sentences have different topics, so the
words alone leave two classes equally likely: only their order tells them apart.
"""

import math
from collections.abc import Callable, Collection
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from perfsuite.records.workload import Split, Workload
from perfsuite.worker.workloads.encoder import build_encoder, encoder_layers
from perfsuite.worker.workloads.splits import take_split

NUM_TOPICS = 4
WORDS_PER_TOPIC = 32
SENTENCE_LENGTH = 31
CLASS_TOKEN, SEPARATOR_TOKEN, FIRST_WORD = 0, 1, 2

VOCABULARY_SIZE = FIRST_WORD + NUM_TOPICS * WORDS_PER_TOPIC
# The class token, a sentence, a separator, a sentence.
SEQUENCE_LENGTH = 2 + 2 * SENTENCE_LENGTH
SPLIT_SIZES: dict[Split, int] = {"train": 2048, "validation": 256, "test": 256}

# The other words come from all topics. A model learns the task within 100 steps of 8 pairs.
_SHARE_OF_WORDS_ON_TOPIC = 0.9
# The data are the same on every rank and in every cell, whatever the cell's seed.
_DATA_SEED = 20

WIDTH = 128
NUM_HEADS = 4
NUM_LAYERS = 4
DROPOUT = 0.1

# RoBERTa's LoRA in Hu et al. (2021), section 5.2 and table 9: query and value, rank 8; alpha is
# twice the rank, the usual choice.
LORA_NAMES = ("query", "value")
LORA_RANK = 8
LORA_ALPHA = 16

# One step takes about 55 ms on one core of 2025.
_MICRO_BATCH_SIZE = 8
# The loss falls below 0.3 within 100 steps from each of four seeds; at 1e-3 from one of them.
_LEARNING_RATE = 5e-4
# The random base cannot help, so LoRA needs larger steps. Loss after 100 of them, from 1.4: 1.2 at
# 1e-3, 0.3 at 3e-3, 1.1 at 1e-2.
_LORA_LEARNING_RATE = 3e-3
# RoBERTa's own (Liu et al. 2019, section 3.1); torch's default of 1e-8 is 0 in float16.
_EPSILON = 1e-6


class LoRALinear(nn.Module):
    """A linear layer W0 with a trainable update: W0 x + (alpha / rank) B A x.

    Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, equation 3.

    Attributes:
        base: W0.
        down: A, (rank, features in), random.
        up: B, (features out, rank), zero, so that at the start the output is the base's.
        scale: alpha / rank.
    """

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        # As in the authors' loralib, Linear.reset_parameters.
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (..., features out) for (..., features in)."""
        outputs: Tensor = self.base(inputs) + self.scale * self.up(self.down(inputs))
        return outputs


def add_lora(model: nn.Module, *, names: Collection[str], rank: int, alpha: float) -> None:
    """Freeze all of `model` and put a trainable LoRA beside some of its linear layers, in place.

    `names` are the last parts of those layers' names, such as "query".
    """
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(parent, name, LoRALinear(child, rank=rank, alpha=alpha))


def build_transformer() -> nn.Sequential:
    """Return the chain of embeddings, `NUM_LAYERS` equal layers and head."""
    return build_encoder(
        vocabulary_size=VOCABULARY_SIZE,
        max_length=SEQUENCE_LENGTH,
        num_classes=NUM_TOPICS,
        width=WIDTH,
        num_heads=NUM_HEADS,
        num_layers=NUM_LAYERS,
        dropout=DROPOUT,
    )


def build_transformer_with_lora() -> nn.Sequential:
    """Return `build_transformer()` frozen, with LoRA on query and value and a trainable head."""
    model = build_transformer()
    add_lora(model, names=LORA_NAMES, rank=LORA_RANK, alpha=LORA_ALPHA)
    model.get_submodule("head").requires_grad_(True)
    return model


def sentence_pairs(split: Split) -> TensorDataset:
    """Return ((64,) int64 tokens, topic of the first sentence) pairs of one of three parts."""
    generator = torch.Generator().manual_seed(_DATA_SEED)
    num_pairs = sum(SPLIT_SIZES.values())
    first = torch.randint(NUM_TOPICS, (num_pairs, 1), generator=generator)
    second = (
        first + torch.randint(1, NUM_TOPICS, (num_pairs, 1), generator=generator)
    ) % NUM_TOPICS
    tokens = torch.cat(
        [
            torch.full((num_pairs, 1), CLASS_TOKEN),
            _sentences(first, generator),
            torch.full((num_pairs, 1), SEPARATOR_TOKEN),
            _sentences(second, generator),
        ],
        dim=1,
    )
    return take_split(split, SPLIT_SIZES, tokens, first.squeeze(1))


def _sentences(topics: Tensor, generator: torch.Generator) -> Tensor:
    """Return (N, SENTENCE_LENGTH) words for topics (N, 1)."""
    shape = (len(topics), SENTENCE_LENGTH)
    on_topic = torch.rand(shape, generator=generator) < _SHARE_OF_WORDS_ON_TOPIC
    any_topic = torch.randint(NUM_TOPICS, shape, generator=generator)
    word = torch.randint(WORDS_PER_TOPIC, shape, generator=generator)
    return FIRST_WORD + WORDS_PER_TOPIC * torch.where(on_topic, topics, any_topic) + word


def _transformer_workload(
    name: str, build_model: Callable[[], nn.Module], learning_rate: float
) -> Workload:
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
transformer_tiny = partial(
    _transformer_workload, "transformer-tiny", build_transformer, _LEARNING_RATE
)
# Trains the LoRA weights and the head. At one seed base and first output are "transformer-tiny"'s.
transformer_tiny_lora = partial(
    _transformer_workload, "transformer-tiny-lora", build_transformer_with_lora, _LORA_LEARNING_RATE
)
