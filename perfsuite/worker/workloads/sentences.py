"""Synthetic pairs of sentences whose class is the topic of the first one.

The two sentences of a pair have different topics, so the words alone leave two classes equally
likely: only their order tells them apart.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from perfsuite.records.workload import Split
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
