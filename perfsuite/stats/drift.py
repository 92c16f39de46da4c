"""How fast a series drifts: the median of the slopes between its values, with a test and bounds.

Theil (1950) and Sen (1968), "Estimates of the Regression Coefficient Based on Kendall's Tau"; where
the level of the series changes, slopes within its segments alone count, as within the seasons of
Hirsch, Slack and Smith (1982), "Techniques of Trend Analysis for Monthly Water Quality Data". With
one segment it is `scipy.stats.theilslopes`. A third of the values may be anything at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from perfsuite.stats.autocorrelation import find_correlation, inflation

if TYPE_CHECKING:
    from perfsuite.stats.autocorrelation import Floats


# The probability of a false drift in a series without one, whatever its distribution.
LEVEL: Final = 0.005
# Probability beyond each bound of a slope.
_TAIL: Final = 0.025


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The slope of a series in a unit of time, its 95 % bounds, and Kendall's p value."""

    slope: float
    low: float
    high: float
    p_value: float

    @property
    def is_significant(self) -> bool:
        """Whether a series without drift would look so in fewer than `LEVEL` of cases."""
        return self.p_value < LEVEL


def measure_drift(
    times: Sequence[float], values: Sequence[float], bounds: Sequence[int]
) -> Drift | None:
    """Return how a series drifts between its changes; None where all times there are equal.

    Times are in any unit and order; `bounds` are those of its segments: [0, ..., len(values)].

    >>> drift = measure_drift([0, 1, 2, 3, 4, 5], [5.0, 5.2, 5.4, 9.0, 9.2, 9.4], [0, 3, 6])
    >>> round(drift.slope, 9)
    0.2
    """
    import numpy as np
    from scipy.special import ndtr, ndtri

    slopes: list[Floats] = []
    variance = 0.0
    for start, end in pairwise(bounds):
        t, v = np.asarray(times[start:end], float), np.asarray(values[start:end], float)
        steps = t[None, :] - t[:, None]
        is_later = steps > 0
        slopes.append((v[None, :] - v[:, None])[is_later] / steps[is_later])
        variance += _score_variance(t, v)
    ordered = np.sort(np.concatenate(slopes))
    if not variance:
        return None
    left = np.asarray(values, float) - np.median(ordered) * np.asarray(times, float)
    parts = [left[start:end] for start, end in pairwise(bounds)]
    variance *= inflation(find_correlation(parts))
    sd, num_slopes = math.sqrt(variance), len(ordered)
    score = float(np.sign(ordered).sum())
    # Of S, which moves by 2, half a step (Kendall 1975).
    p_value = 2 * float(ndtr(-max(0.0, abs(score) - 1) / sd))
    reach = -float(ndtri(_TAIL)) * sd
    low, high = round((num_slopes - reach) / 2) - 1, round((num_slopes + reach) / 2)
    return Drift(
        slope=float(np.median(ordered)),
        low=float(ordered[max(low, 0)]),
        high=float(ordered[min(high, num_slopes - 1)]),
        p_value=p_value,
    )


def _score_variance(times: Floats, values: Floats) -> float:
    """Return the variance of Kendall's S without drift, with ties in times and values.

    Kendall (1975), "Rank Correlation Methods", chapter 4.
    """
    import numpy as np

    n = len(times)
    if n < 2:
        return 0.0
    t, u = (np.unique(one, return_counts=True)[1].astype(float) for one in (times, values))

    def spread(k: Floats | float) -> Floats | float:
        return k * (k - 1) * (2 * k + 5)

    variance = (spread(float(n)) - np.sum(spread(t)) - np.sum(spread(u))) / 18
    pairs = np.sum(t * (t - 1)) * np.sum(u * (u - 1))
    triples = np.sum(t * (t - 1) * (t - 2)) * np.sum(u * (u - 1) * (u - 2))
    variance += pairs / (2 * n * (n - 1))
    if n > 2:
        variance += triples / (9 * n * (n - 1) * (n - 2))
    return float(variance)
