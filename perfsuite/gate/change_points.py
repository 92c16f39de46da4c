"""Where the level of a series changes: E-divisive means, tested by permutation.

The procedure of Matteson and James (2014), "A Nonparametric Approach for Multiple Change Point
Analysis of Multivariate Data", section 2, for one dimension and alpha = 1. For the parts X of n and
Y of m values beside each other it measures

    Q = n m / (n + m) * (2 mean|x - y| - mean|x - x'| - mean|y - y'|)

takes the split of any segment where Q is largest, tests it against the same search over series
whose segments are shuffled, and goes on until a split is not significant. Apache Otava's search for
a split is the same; its significance test is another (decision 0011). Must not know what the values
are.

Shapes: n values; a matrix of Q has a row for each end of X and a column for each end of Y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# A part of fewer is an outlier or two, which the next runs will tell from a change.
MIN_SEGMENT: Final = 3
# The probability that a series without any change is said to have one, whatever its distribution.
LEVEL: Final = 0.005
# Two of 400 are the level. Half of it would need twice as many, and a series with changes pays for
# all of them.
_NUM_PERMUTATIONS: Final = 399
# The same series is to have the same changes each time.
_SEED: Final = 0
# Sums of the same numbers in another order differ by rounding.
_ROUNDING: Final = 1e-9


def find_change_points(values: Sequence[float]) -> tuple[int, ...]:
    """Return where the level of a series changes: the places of the first values that are new.

    Values that follow each other are taken to be exchangeable between two changes: where they hang
    together, more false changes are found than `LEVEL` promises.

    >>> find_change_points([1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9])
    (6,)
    >>> find_change_points([1.0, 1.1, 0.9, 1.0, 1.1, 0.9] * 3)
    ()
    """
    import numpy as np

    series = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(_SEED)
    bounds = [0, len(series)]
    while True:
        segments = [series[start:end] for start, end in pairwise(bounds)]
        found = [best_split(segment) for segment in segments]
        place = max(range(len(found)), key=lambda number: found[number][0])
        statistic, inside = found[place]
        if inside is None or not _is_significant(statistic, segments, generator):
            return tuple(bounds[1:-1])
        bounds.insert(place + 1, bounds[place] + inside)


def best_split(segment: Floats) -> tuple[float, int | None]:
    """Return the largest Q of a segment, and where Y begins; -inf and None where it is too short.

    >>> best_split([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])  # 3 * 3 / 6 * (2 * 1 - 0 - 0)
    (3.0, 3)
    """
    import numpy as np

    num_values = len(segment)
    if num_values < 2 * MIN_SEGMENT:
        return -math.inf, None
    values = np.asarray(segment, dtype=np.float64)
    # sums[i, j]: of |value - other| over the first i values and the first j others.
    sums = np.zeros((num_values + 1, num_values + 1))
    sums[1:, 1:] = np.abs(values[:, None] - values[None, :]).cumsum(axis=0).cumsum(axis=1)
    first, last = MIN_SEGMENT, num_values - MIN_SEGMENT
    n = np.arange(first, last + 1)[:, None]
    num_both = np.arange(2 * MIN_SEGMENT, num_values + 1)[None, :]
    is_too_short = num_both - n < MIN_SEGMENT
    m = np.where(is_too_short, MIN_SEGMENT, num_both - n)
    across = sums[first : last + 1, 2 * MIN_SEGMENT :]
    within = sums.diagonal()
    within_x, within_both = within[first : last + 1, None], within[None, 2 * MIN_SEGMENT :]
    between = across - within_x
    within_y = within_both - across - between
    q = (2 * between - m / (n - 1) * within_x - n / (m - 1) * within_y) / (n + m)
    q[is_too_short] = -np.inf
    row, column = np.unravel_index(np.argmax(q), q.shape)
    return float(q[row, column]), int(row) + MIN_SEGMENT


def _is_significant(
    observed: float, segments: Sequence[Floats], generator: np.random.Generator
) -> bool:
    """Whether at most `LEVEL` of shuffled series, this one among them, have as large a Q.

    It ends as soon as that is decided, which a series without a change is after a few.
    """
    num_allowed = math.floor(LEVEL * (_NUM_PERMUTATIONS + 1)) - 1
    least = observed * (1 - _ROUNDING)
    for _ in range(_NUM_PERMUTATIONS):
        shuffled = (best_split(generator.permutation(segment))[0] for segment in segments)
        num_allowed -= max(shuffled) >= least
        if num_allowed < 0:
            return False
    return True
