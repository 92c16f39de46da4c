"""Pairs of which only the ratio matters: no round stalls, and nothing is known of their errors."""

from __future__ import annotations

from collections.abc import Iterable

from perfsuite.stats.evidence import Pair


def plain_pairs(log_ratios: Iterable[float]) -> list[Pair]:
    """Return pairs in which each round has the same ratio."""
    return [Pair(log_ratio=one, mean_log_ratio=one) for one in log_ratios]
