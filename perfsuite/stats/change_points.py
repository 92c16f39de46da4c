"""Where the level of a series changes: E-divisive means, tested by permutation (decision 0011).

Shapes: n values; a matrix of Q has a row for each end of X and a column for each end of Y.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A shorter part is an outlier or two; the next runs will show whether it is a change.
MIN_SEGMENT = 3
# The probability of a false change in a series without one, whatever its distribution: among the
# two hundred of the series and its shuffles it must be the most extreme.
LEVEL = 0.005
_NUM_SHUFFLES = round(1 / LEVEL) - 1
# The same series must have the same changes each time.
_SEED = 0
# Sums of the same numbers in another order differ by rounding.
_ROUNDING = 1e-9

# The correlation of independent values exceeds this many standard errors in a twentieth of series.
# Below it they are taken as independent: their tests stay exact.
_NOTICED_SDS = 1.645
# Of a more correlated series half a year proves nothing.
_MOST = 0.9


def find_change_points(values: Sequence[float]) -> tuple[int, ...]:
    """Return where the level of a series changes: the places of the first values that are new.

    Between two changes values are taken to be exchangeable, or, where they are correlated, their
    innovations: then `LEVEL` holds about, not exactly.
    """
    series, correlation = np.asarray(values, dtype=np.float64), 0.0
    while True:
        places = _divide(series, correlation)
        found = find_correlation(np.split(series, places))
        # The same places have the same correlation, so this ends.
        if found <= correlation:
            return places
        correlation = found


def _divide(series: Floats, correlation: float) -> tuple[int, ...]:
    """Return where the level changes, for values of this correlation between two changes."""
    generator = np.random.default_rng(_SEED)
    bounds = [0, len(series)]
    while True:
        segments = [series[start:end] for start, end in pairwise(bounds)]
        found = [best_split(segment) for segment in segments]
        place = max(range(len(found)), key=lambda number: found[number][0])
        statistic, inside = found[place]
        if inside is None or not _is_significant(statistic, segments, correlation, generator):
            return tuple(bounds[1:-1])
        bounds.insert(place + 1, bounds[place] + inside)


def best_split(segment: Floats) -> tuple[float, int | None]:
    """Return the largest Q of a segment and where Y begins; -inf and None if it is too short."""
    if (num_values := len(segment)) < 2 * MIN_SEGMENT:
        return -math.inf, None
    # sums[i, j]: of |value - other| over the first i values and the first j others.
    sums = np.zeros((num_values + 1, num_values + 1))
    sums[1:, 1:] = np.abs(segment[:, None] - segment[None, :]).cumsum(axis=0).cumsum(axis=1)
    of_between, of_x, of_y, forbidden = _weights(num_values)
    across = sums[MIN_SEGMENT:-MIN_SEGMENT, 2 * MIN_SEGMENT :]
    within = sums.diagonal()
    within_x = within[MIN_SEGMENT:-MIN_SEGMENT, None]
    between = across - within_x
    within_y = within[None, 2 * MIN_SEGMENT :] - across - between
    q = of_between * between - of_x * within_x - of_y * within_y + forbidden
    row, column = np.unravel_index(np.argmax(q), q.shape)
    return float(q[row, column]), int(row) + MIN_SEGMENT


@lru_cache(maxsize=32)
def _weights(num_values: int) -> tuple[Floats, ...]:
    """The factors of the three sums in Q, and -inf where Y is too short; for all shuffles."""
    n = np.arange(MIN_SEGMENT, num_values - MIN_SEGMENT + 1)[:, None]
    both = np.arange(2 * MIN_SEGMENT, num_values + 1)[None, :]
    m = np.maximum(both - n, MIN_SEGMENT)
    forbidden = np.where(both - n < MIN_SEGMENT, -np.inf, 0.0)
    return 2 / (n + m), m / (n - 1) / (n + m), n / (m - 1) / (n + m), forbidden


def _is_significant(
    observed: float, segments: Sequence[Floats], correlation: float, generator: np.random.Generator
) -> bool:
    """Whether no shuffled series has as large a Q; a series without a change ends after a few."""
    least = observed * (1 - _ROUNDING)
    return not any(
        max(best_split(shuffle(one, correlation, generator))[0] for one in segments) >= least
        for _ in range(_NUM_SHUFFLES)
    )


def find_correlation(parts: Sequence[Floats]) -> float:
    """Return the correlation of values with the next ones, 0 where it may be chance.

    Corrected for the part that is lost with each part's own mean (Kendall 1954, "Note on Bias in
    the Estimation of Autocorrelation"). `parts` is a series, cut where its level changes.
    """
    centred = [np.asarray(part) - np.mean(part) for part in parts]
    num_values = sum(map(len, centred))
    spread = sum(float(part @ part) for part in centred)
    if not spread:
        return 0.0
    found = sum(float(part[1:] @ part[:-1]) for part in centred) / spread
    hidden = len(parts) / num_values
    corrected = (found + hidden) / (1 - 3 * hidden) if hidden < 1 / 6 else found
    return min(corrected, _MOST) if corrected > _NOTICED_SDS / math.sqrt(num_values) else 0.0


def shuffle(values: Floats, correlation: float, generator: np.random.Generator) -> Floats:
    """Return a series of shuffled values with the same correlation.

    Innovations, values less their share of the one before, are shuffled, and the series rebuilt.
    """
    if not correlation:
        return generator.permutation(values)
    centred = values - np.mean(values)
    alone = math.sqrt(1 - correlation**2)
    added = np.append(centred[0] * alone, centred[1:] - correlation * centred[:-1])
    shuffled = generator.permutation(added)
    shuffled[0] /= alone
    return np.array(list(accumulate(shuffled, lambda last, new: correlation * last + new)))
