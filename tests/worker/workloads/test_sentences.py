from __future__ import annotations

import torch
from torch import Tensor

from perfsuite.worker.workloads.splits import SYNTHETIC_SIZES
from perfsuite.worker.workloads.transformer import (
    CLASS_TOKEN,
    FIRST_WORD,
    NUM_TOPICS,
    SENTENCE_LENGTH,
    SEPARATOR_TOKEN,
    VOCABULARY_SIZE,
    WORDS_PER_TOPIC,
    sentence_pairs,
)


def num_words_by_topic(words: Tensor) -> Tensor:
    """Return how many of the words (N, length) belong to each topic, (N, topics)."""
    topics = (words - FIRST_WORD) // WORDS_PER_TOPIC
    return torch.nn.functional.one_hot(topics, NUM_TOPICS).sum(dim=1)


def test_a_pair_is_two_sentences_between_their_marks() -> None:
    tokens, labels = sentence_pairs("train").tensors

    words = torch.cat([tokens[:, 1:32], tokens[:, 33:]], dim=1)
    assert tokens.shape == (2048, 64)
    assert tokens.dtype == labels.dtype == torch.int64
    assert tokens[:, 0].unique().tolist() == [CLASS_TOKEN]
    assert tokens[:, 32].unique().tolist() == [SEPARATOR_TOKEN]
    assert words.unique().tolist() == list(range(FIRST_WORD, VOCABULARY_SIZE))
    assert labels.unique().tolist() == list(range(NUM_TOPICS))


def test_the_first_sentence_tells_the_class() -> None:
    tokens, labels = sentence_pairs("train").tensors

    first = num_words_by_topic(tokens[:, 1 : 1 + SENTENCE_LENGTH])

    assert (first.argmax(dim=1) == labels).float().mean() > 0.99


def test_the_words_without_their_order_leave_two_classes_equally_likely() -> None:
    tokens, labels = sentence_pairs("train").tensors
    words = torch.cat([tokens[:, 1:32], tokens[:, 33:]], dim=1)

    two_commonest = num_words_by_topic(words).topk(2).indices

    is_one_of_them = (two_commonest == labels[:, None]).float().mean(dim=0)
    assert is_one_of_them.sum() > 0.99
    assert (is_one_of_them - 0.5).abs().max() < 0.03


def test_the_parts_have_their_sizes_and_share_no_pair() -> None:
    parts = [sentence_pairs(split).tensors[0] for split in SYNTHETIC_SIZES]

    assert [len(part) for part in parts] == [2048, 256, 256]
    assert len(torch.cat(parts).unique(dim=0)) == 2560
