"""The trend of a series of times: steps from one level to another, and a drift beside them.

A drift looks like a staircase to a search for steps, and a step like a drift to a search for a
slope. Both are fitted, and the simpler one that explains the series is kept.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

# With fewer values the luck of the shuffles decides whether even a clean step is found: two of the
# 462 ways to part eleven into five and six are as clean, which is just the level of a change point.
MIN_VALUES = 13
# Half of a gate's default tolerance. A long history proves smaller changes, too small to act on.
SMALLEST_CHANGE = 0.01
# A slope a week from less than a week would be a guess about the rest of the week.
_MIN_SPAN_WEEKS = 1.0
# A fit that has not settled by then goes back and forth.
_MAX_TURNS = 5
# The probability of a false drift in a series without one, whatever its distribution.
DRIFT_LEVEL = 0.005
# Probability beyond each bound of a step, and of a slope.
_TAIL = 0.025
# e^50 is more than any real ratio, and e^500 s than any real time; e^709 is the largest float. The
# history is untrusted, and must not overflow.
_MAX_DIFFERENCE = 50.0
_MAX_LOG = 500.0
# Less than any spread of times: its logarithm is the price of a perfect fit.
_LEAST_SPREAD = 1e-9

Values = Sequence[float]


class Drift(NamedTuple):
    """The slope of a series in a unit of time, its 95 % bounds, and Kendall's p value."""

    slope: float
    low: float
    high: float
    p_value: float


class LevelChange(NamedTuple):
    """The ratio of a new level, from `place` on, over the old, 1.08 = 8 % slower; 95 % bounds."""

    place: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One explanation of a series: a drift of its logarithm a week, or none, and steps beside it.

    `bounds` part the series at its steps, `detrended` are the logarithms without the drift.
    """

    drift: Drift | None
    bounds: tuple[int, ...]
    detrended: tuple[float, ...]

    @cached_property
    def steps(self) -> tuple[LevelChange, ...]:
        """Each change from one level to the next."""
        return tuple(
            LevelChange(place, *self.compare(level - 1, level))
            for level, place in enumerate(self.bounds[1:-1], start=1)
        )

    def compare(self, before: int, after: int) -> tuple[float, float, float]:
        """Return the ratio of level `after` over `before`, from 0 on, and its bounds."""
        bounds = self.bounds
        old, new = (self.detrended[bounds[level] : bounds[level + 1]] for level in (before, after))
        shift, low, high = locate_shift(old, new)
        return as_ratio(shift), as_ratio(low), as_ratio(high)

    def is_recovered(self, level: int, *, smallest: float) -> bool:
        """Whether the slowdown at the step to a level was undone, but for less than `smallest`."""
        compared = (self.compare(level - 1, new) for new in range(level + 1, len(self.steps) + 1))
        return any(low <= 1 or ratio < 1 + smallest for ratio, low, _ in compared)

    def information(self) -> float:
        """Return the cost (Schwarz 1978), Laplace's errors; a step costs its place and its size."""
        segments = [self.detrended[start:end] for start, end in pairwise(self.bounds)]
        centred = ((segment, statistics.median(segment)) for segment in segments)
        errors = [abs(value - centre) for segment, centre in centred for value in segment]
        num_parameters = 2 * (len(self.bounds) - 2) + (self.drift is not None)
        spread = max(statistics.fmean(errors), _LEAST_SPREAD)
        return 2 * len(errors) * math.log(spread) + num_parameters * math.log(len(errors))


def find_trend(
    weeks: Values, times_s: Values, *, smallest: float = SMALLEST_CHANGE
) -> Trend | None:
    """Return the steps and the drift of a series; None where it is too short to have any.

    Those below `smallest`, 0.01 = 1 %, are left out. Of series that neither step nor drift at most
    1 % are reported: the level of `change_points` and `DRIFT_LEVEL` together.
    """
    if len(times_s) < MIN_VALUES:
        return None
    logs = [math.log(time_s) for time_s in times_s]
    centre = max(-_MAX_LOG, min(_MAX_LOG, statistics.median(logs)))
    logs = [centre + max(-_MAX_DIFFERENCE, min(_MAX_DIFFERENCE, log - centre)) for log in logs]
    stepped = _fit_steps(logs, None)
    # A large step hides a drift from what has not seen it, and a staircase of small ones is one.
    starts = dict.fromkeys([(0, len(logs)), stepped.bounds])
    drifting = [_fit_drift(weeks, logs, start) for start in starts]
    best = min([stepped, *filter(None, drifting)], key=Trend.information)
    return _without_small(best, weeks, logs, math.log1p(smallest))


def _fit_drift(weeks: Values, logs: Values, bounds: tuple[int, ...]) -> Trend | None:
    if max(weeks) - min(weeks) < _MIN_SPAN_WEEKS:
        return None
    for _ in range(_MAX_TURNS):
        if (drift := measure_drift(weeks, logs, bounds)) is None or drift.p_value >= DRIFT_LEVEL:
            return None
        fit = _fit_steps([log - drift.slope * t for log, t in zip(logs, weeks, strict=True)], drift)
        if fit.bounds == bounds:
            return fit
        bounds = fit.bounds
    return None


def _fit_steps(values: Sequence[float], drift: Drift | None) -> Trend:
    from perfsuite.stats.change_points import find_change_points  # here, because it loads numpy

    bounds = (0, *find_change_points(values), len(values))
    return Trend(drift=drift, bounds=bounds, detrended=tuple(values))


def _without_small(fit: Trend, weeks: Values, logs: Values, least: float) -> Trend:
    """The fit without small steps and a small drift; the smallest steps go first."""
    if (drift := fit.drift) is not None and abs(drift.slope) * (max(weeks) - min(weeks)) < least:
        drift = None
    values = logs if drift is None else fit.detrended
    bounds = list(fit.bounds)
    while len(bounds) > 2:
        sizes = [
            abs(locate_shift(values[start:place], values[place:end])[0])
            for start, place, end in zip(bounds, bounds[1:], bounds[2:], strict=False)
        ]
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if sizes[smallest] >= least:
            break
        del bounds[smallest + 1]
    return Trend(drift=drift, bounds=tuple(bounds), detrended=tuple(values))


def as_ratio(difference: float) -> float:
    """Return the ratio whose logarithm is `difference`, as far as any real ratio goes."""
    return math.exp(max(-_MAX_DIFFERENCE, min(_MAX_DIFFERENCE, difference)))


def locate_shift(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, float]:
    """Return by how much one sample is above another, and its bounds.

    The median of all differences (Hodges and Lehmann 1963), with bounds by Mann and Whitney's test.
    """
    from scipy.special import ndtri

    differences = sorted(new - old for new in after for old in before)
    num_pairs = len(differences)
    reach = -float(ndtri(_TAIL)) * math.sqrt(num_pairs * (len(before) + len(after) + 1) / 12)
    beyond = max(0, math.floor(num_pairs / 2 - reach))
    return statistics.median(differences), differences[beyond], differences[-1 - beyond]


def measure_drift(times: Values, values: Values, bounds: Sequence[int]) -> Drift | None:
    """Return how a series drifts between its changes; None where all times there are equal.

    The median of the slopes between its values (Theil 1950; Sen 1968) within segments, as within
    the seasons of Hirsch, Slack and Smith (1982), "Techniques of Trend Analysis for Monthly Water
    Quality Data". `bounds` are those of the segments: [0, ..., len(values)].
    """
    import numpy as np
    from scipy.special import ndtr, ndtri

    from perfsuite.stats.change_points import find_correlation

    slopes, variance = [], 0.0
    for start, end in pairwise(bounds):
        t, v = np.asarray(times[start:end], float), np.asarray(values[start:end], float)
        steps = t[None, :] - t[:, None]
        is_later = steps > 0
        slopes.append((v[None, :] - v[:, None])[is_later] / steps[is_later])
        variance += _score_variance(times[start:end], values[start:end])
    ordered = np.sort(np.concatenate(slopes))
    if not variance:
        return None
    left = np.asarray(values, float) - np.median(ordered) * np.asarray(times, float)
    correlation = find_correlation([left[start:end] for start, end in pairwise(bounds)])
    # A sum of correlated values varies by this factor more.
    sd = math.sqrt(variance * ((1 + correlation) / (1 - correlation)))
    num_slopes = len(ordered)
    score = float(np.sign(ordered).sum())
    reach = -float(ndtri(_TAIL)) * sd
    low, high = round((num_slopes - reach) / 2) - 1, round((num_slopes + reach) / 2)
    return Drift(
        slope=float(np.median(ordered)),
        low=float(ordered[max(low, 0)]),
        high=float(ordered[min(high, num_slopes - 1)]),
        # Corrected by half a step of S, which moves by 2 (Kendall 1975).
        p_value=2 * float(ndtr(-max(0.0, abs(score) - 1) / sd)),
    )


def _score_variance(times: Sequence[float], values: Sequence[float]) -> float:
    """The variance of S without drift, with ties (Kendall 1975, "Rank Correlation Methods", 4)."""
    import numpy as np

    if (n := len(times)) < 2:
        return 0.0
    t, u = (np.unique(one, return_counts=True)[1].astype(float) for one in (times, values))
    untied, in_t, in_u = (np.sum(k * (k - 1) * (2 * k + 5)) for k in (np.array([n]), t, u))
    variance = (untied - in_t - in_u) / 18
    triples = np.sum(t * (t - 1) * (t - 2)) * np.sum(u * (u - 1) * (u - 2))
    variance += np.sum(t * (t - 1)) * np.sum(u * (u - 1)) / (2 * n * (n - 1))
    if n > 2:
        variance += triples / (9 * n * (n - 1) * (n - 2))
    return float(variance)
