"""The correlation of each value with the one before, and shuffles that keep it.

A machine that is slow for a week makes its sessions alike, which is no change of the code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


# The correlation of independent values exceeds this many standard errors in a twentieth of series.
# Below it they are taken as independent: their tests stay exact.
_NOTICED_SDS: Final = 1.645
# Of a more correlated series half a year proves nothing.
_MOST: Final = 0.9


def find_correlation(parts: Sequence[Floats]) -> float:
    """Return the correlation of values with the next ones, 0 where it may be chance.

    Corrected for the part that is lost with each part's own mean (Kendall 1954, "Note on Bias in
    the Estimation of Autocorrelation"). `parts` is a series, cut where its level changes.
    """
    import numpy as np

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

    The innovation of each value, its difference from its share of the one before, is shuffled, and
    the series rebuilt from them.
    """
    import numpy as np

    if not correlation:
        return generator.permutation(values)
    centred = values - np.mean(values)
    alone = math.sqrt(1 - correlation**2)
    added = np.append(centred[0] * alone, centred[1:] - correlation * centred[:-1])
    shuffled = generator.permutation(added)
    shuffled[0] /= alone
    return np.array(list(accumulate(shuffled, lambda last, new: correlation * last + new)))


def inflation(correlation: float) -> float:
    """Return the variance of a sum of values over that of as many independent ones.

    >>> inflation(0.0), inflation(0.5)
    (1.0, 3.0)
    """
    return (1 + correlation) / (1 - correlation)
