"""Centres, spreads and intervals of samples; scipy is imported late, since it costs 0.2 s."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# 1.4826 makes the median absolute deviation estimate the standard deviation of normal data:
# 1 / Phi^-1(3/4) (Hampel 1974, "The Influence Curve and Its Role in Robust Estimation").
MAD_TO_SD = 1.4826
# Of each end: what Wilcox (2012) recommends for tails of unknown weight.
_TRIMMED = 0.2
# Probability beyond each bound of an interval.
_TAIL = 0.025


def trimmed_mean(samples: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the middle three fifths of at least one sample, and its standard error.

    The error is that of Tukey and McLaughlin (1963), of the winsorized samples; infinite for fewer
    than five of them, where nothing would be trimmed.
    """
    # As scipy.stats.trim_mean and mstats.trimmed_stde, whose import takes a second of each gate.
    num_trimmed = int(_TRIMMED * len(samples))
    kept = sorted(samples)[num_trimmed : len(samples) - num_trimmed]
    centre = statistics.fmean(kept)
    if num_trimmed == 0:
        return centre, math.inf
    winsorized = [kept[0]] * num_trimmed + kept + [kept[-1]] * num_trimmed
    return centre, statistics.stdev(winsorized) / ((1 - 2 * _TRIMMED) * math.sqrt(len(samples)))


def robust_sd(samples: Sequence[float]) -> float:
    """Return the scaled median absolute deviation, a robust spread; 0 for one sample."""
    if len(samples) < 2:
        return 0.0
    centre = statistics.median(samples)
    return MAD_TO_SD * statistics.median(abs(sample - centre) for sample in samples)


class Interval(NamedTuple):
    """The centre of positive samples, and its bounds."""

    centre: float
    low: float
    high: float

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Both; None where one sample shows no spread."""
        return (self.low, self.high) if math.isfinite(self.high) else None


def geometric_interval(samples: Sequence[float]) -> Interval:
    """Return the geometric mean of positive samples, times or ratios, with Student's t interval.

    It is that of the logarithms, of 95 % confidence. The interval of one sample is everything.
    """
    if len(samples) == 1:
        return Interval(centre=samples[0], low=0.0, high=math.inf)
    logs = [math.log(sample) for sample in samples]
    mean = statistics.fmean(logs)
    reach = float(exceeded_t(_TAIL, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(centre=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def ratio_interval(samples: Sequence[float], others: Sequence[float]) -> Interval:
    """Return the ratio of two geometric means of positive samples, with Welch's interval (1947).

    It is of 95 % confidence. With a single sample the interval is everything.
    """
    logs = [[math.log(sample) for sample in side] for side in (samples, others)]
    centre = math.exp(statistics.fmean(logs[0]) - statistics.fmean(logs[1]))
    if min(map(len, logs)) < 2:
        return Interval(centre=centre, low=0.0, high=math.inf)
    errors = [statistics.variance(side) / len(side) for side in logs]
    if not any(errors):
        return Interval(centre=centre, low=centre, high=centre)
    each = zip(errors, logs, strict=True)
    freedom = sum(errors) ** 2 / sum(error**2 / (len(side) - 1) for error, side in each)
    reach = float(exceeded_t(_TAIL, freedom)) * math.sqrt(sum(errors))
    return Interval(centre=centre, low=centre * math.exp(-reach), high=centre * math.exp(reach))


def exceeded_t(
    tail: float, degrees_of_freedom: "float | NDArray[np.float64]"
) -> "NDArray[np.float64] | np.float64":
    """Return the value that Student's t exceeds with probability `tail`, for each df.

    >>> round(float(exceeded_t(0.025, 10)), 3)  # any table of t
    2.228
    """
    import numpy as np
    from scipy.special import stdtrit

    # Of many cells most have the same, and this takes a microsecond for each.
    distinct, places = np.unique(degrees_of_freedom, return_inverse=True)
    return -stdtrit(distinct, tail)[places].reshape(np.shape(degrees_of_freedom))  # type: ignore[no-any-return]
