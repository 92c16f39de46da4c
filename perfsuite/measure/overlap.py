"""How much of one kind of work is hidden behind another: arithmetic on intervals of time.

Must not know what the intervals are of, nor their unit. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the times that any interval covers, as disjoint intervals in order.

    >>> merge([(4, 6), (0, 2), (1, 3)])
    [(0, 3), (4, 6)]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def total(merged: Sequence[Interval]) -> float:
    """Return how long disjoint intervals are together.

    >>> total([(0, 3), (4, 6)])
    5
    """
    return sum(end - start for start, end in merged)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Return for how long both of two merged lists of intervals are under way.

    >>> overlap([(0, 3), (4, 6)], [(2, 5)])
    2
    """
    shared: float = 0
    place = 0
    for start, end in one:
        while place < len(other) and other[place][1] <= start:
            place += 1
        later = place
        while later < len(other) and other[later][0] < end:
            shared += min(end, other[later][1]) - max(start, other[later][0])
            later += 1
    return shared
