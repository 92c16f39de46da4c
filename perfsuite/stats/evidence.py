"""What the pairs of a cell say: two locations, their spreads, and the bounds that decide.

A pair has two logarithms of head / base: of its typical round, which stalls do not move, and of its
total time. The spread for FAIL is the pairs' own (decision 0019); for everything else it is
moderated by s0 and d0 of earlier A/A pairs on this machine (decision 0008).

Shapes: S sessions, n pairs each. One session is S = 1, a simulation many thousand: the same code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfsuite.stats.intervals import MAD_TO_SD, exceeded_t

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


# A prior weighs the less, the more the sample's variance exceeds this many times the prior's: a
# quarter more is chance, twice as much means that the prior is of a quieter machine. At 1 the rule
# loses power where the prior is right; at 1.5 it gains no safety where the prior's spread is half.
_PRIOR_HOLDS_TO = 1.25

# The standard deviation of the ratio of two mean rounds over that of their trimmed ratio, 1.04 %
# over 0.69 % in the 14 launches of `pair_evidence.locate_log_ratio`: a prior is of the latter.
_SDS_OF_MEAN = 1.5

# Pairs of one session may be correlated, which the spread of so few does not show: an AR(0.3) makes
# the variance of the mean of 20 pairs 1.8 times as large. FAIL allows for this much of it; together
# with what the rounds explain, that keeps its level where they explain half of a pair or more.
_CORRELATED = 1.35

# From this many pairs on, one farther from the median than this many standard deviations is pulled
# in to that distance, so that a single spike hides no regression. Of three pairs two spikes are the
# majority, and with five the fence costs false alarms and finds no more regressions.
_FENCE_FROM = 6
# A hair above 2: a pair that lies at exactly 2 is within, to whichever side it is rounded.
_FENCE_SDS = 2.0 * (1 + 1e-9)
# Spikes widen the standard deviation that is to tell them. From this many pairs on the median
# deviation takes its place, where it leaves at most so many pairs outside: more are no spikes but
# another state of the machine, where most pairs agree by chance too often.
_FENCE_BY_MEDIAN_FROM = 12
_MOST_SPIKES = 0.25

# A quarter of the smallest standard deviation of a pair that was ever measured, 0.37 %. Pairs that
# are closer together, or equal, show a coarse clock, not a quiet machine.
LEAST_SD = 0.001

# Of `detectable`: a slowdown that large would have been proven in four of five sessions.
_POWER = 0.80

# The two locations differ by more than the noise where Student's t says so on either side; one
# cell in a hundred without a stall is told about.
_DIFFERS_TAIL = 0.005


@dataclass(frozen=True, kw_only=True)
class Prior:
    """A cell's noise in earlier pairs: the standard deviation of one, and how many it is worth."""

    sd: float
    degrees_of_freedom: float = 8.0

    def __post_init__(self) -> None:
        for name in ("sd", "degrees_of_freedom"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"a prior's {name} is {value}; it must be positive and finite")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The logs of head / base of a pair: its typical round, with its error, and all its rounds."""

    log_ratio: float
    mean_log_ratio: float
    error: float | None = None

    def __post_init__(self) -> None:
        for name in ("log_ratio", "mean_log_ratio", "error"):
            if (value := getattr(self, name)) is not None and not math.isfinite(value):
                raise ValueError(f"a pair's {name} is {value}; it must be finite")


@dataclass(frozen=True)
class Sessions:
    """The pairs of many sessions, each (S, n), as `Pair` has them; an unknown error is 0."""

    log_ratios: Floats
    mean_log_ratios: Floats
    errors: Floats

    def select(self, rows: NDArray[np.int64], begin: int, end: int) -> Sessions:
        """Return those pairs of some sessions."""
        return Sessions(*(each[rows, begin:end] for each in vars(self).values()))


@dataclass(frozen=True)
class Evidence:
    """What the pairs of S sessions say at one look, as logarithms of head / base, each (S,)."""

    location: Floats  # of the typical rounds
    lower: Floats  # its bound for FAIL
    upper: Floats  # its bound for PASS
    improved: Floats  # its bound for IMPROVED
    mean: Floats  # of all rounds together
    mean_upper: Floats  # its bound, which PASS needs too
    detectable: Floats  # a slowdown this much above a line is mostly proven to be above it
    mean_differs: NDArray[np.bool_]


def weigh(pairs: Sessions, prior: Prior | None, *, alpha: float, beta: float) -> Evidence:
    """Return what (S, n) pairs say, n at least 2, at the levels of this look for one cell."""
    num_pairs = pairs.log_ratios.shape[1]
    freedom = num_pairs - 1
    explained = (pairs.errors**2).mean(axis=1)
    location, variance = _locate(pairs.log_ratios, explained)
    own_variance = variance.clip(min=explained).clip(min=LEAST_SD**2)
    own_error = (_CORRELATED * own_variance / num_pairs) ** 0.5
    error, total = _moderate(variance, num_pairs, prior, 1.0)
    below = exceeded_t(alpha, freedom)
    mean = pairs.mean_log_ratios.mean(axis=1)
    mean_variance = pairs.mean_log_ratios.var(axis=1, ddof=1)
    mean_error, mean_total = _moderate(mean_variance, num_pairs, prior, _SDS_OF_MEAN)
    stalls = pairs.mean_log_ratios - pairs.log_ratios
    noise = (stalls.var(axis=1, ddof=1).clip(min=LEAST_SD**2) / num_pairs) ** 0.5
    return Evidence(
        location=location,
        lower=location - below * own_error,
        upper=location + exceeded_t(beta, total) * error,
        improved=location + exceeded_t(alpha, total) * error,
        mean=mean,
        mean_upper=mean + exceeded_t(beta, mean_total) * mean_error,
        detectable=(below + exceeded_t(1 - _POWER, freedom)) * own_error,
        mean_differs=abs(stalls.mean(axis=1)) > exceeded_t(_DIFFERS_TAIL, freedom) * noise,
    )


def _locate(log_ratios: Floats, explained: Floats) -> tuple[Floats, Floats]:
    """Return the location and the variance of one pair, each (S,).

    From six pairs on both are of pairs within the fence. The variance is corrected for what the
    fence took away, by (n - 1)^2 / (h - 1)^2 with h pairs that it left where they were (Dixon and
    Tukey 1968, "Approximate behavior of the distribution of Winsorized t"); of normal pairs the
    fence takes 8 % and the correction gives 10 %, which is what the median adds to the error.
    """
    import numpy as np

    num_pairs = log_ratios.shape[1]
    variance = log_ratios.var(axis=1, ddof=1)
    if num_pairs < _FENCE_FROM:
        return log_ratios.mean(axis=1), variance
    centre = np.median(log_ratios, axis=1, keepdims=True)
    deviations = abs(log_ratios - centre)
    reach = _FENCE_SDS * variance.clip(min=explained)[:, np.newaxis] ** 0.5
    if num_pairs >= _FENCE_BY_MEDIAN_FROM:
        sd = MAD_TO_SD * np.median(deviations, axis=1, keepdims=True)
        narrow = _FENCE_SDS * sd.clip(min=explained[:, np.newaxis] ** 0.5)
        has_few_outside = (deviations > narrow).mean(axis=1, keepdims=True) <= _MOST_SPIKES
        reach = np.where(has_few_outside, np.minimum(narrow, reach), reach)
    num_left = (deviations <= reach).sum(axis=1)
    pulled_in = log_ratios.clip(centre - reach, centre + reach)
    correction = ((num_pairs - 1) / (num_left - 1).clip(min=1)) ** 2
    return pulled_in.mean(axis=1), pulled_in.var(axis=1, ddof=1) * correction


def _moderate(
    variance: Floats, num_pairs: int, prior: Prior | None, sds_of_prior: float
) -> tuple[Floats, Floats]:
    """Return the standard error under a prior, and its degrees of freedom, each (S,).

    The variance is (d s0^2 + (n - 1) s^2) / (d + n - 1), where d is d0 as long as the sample bears
    the prior out, and falls with s^2 beyond.
    """
    freedom = num_pairs - 1
    sd = LEAST_SD if prior is None else sds_of_prior * prior.sd
    borne_out = _PRIOR_HOLDS_TO * sd**2
    weight = (prior.degrees_of_freedom if prior else 0.0) * borne_out / variance.clip(min=borne_out)
    total = weight + freedom
    moderated = (weight * sd**2 + freedom * variance) / total
    return (moderated.clip(min=LEAST_SD**2) / num_pairs) ** 0.5, total
