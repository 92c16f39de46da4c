"""How many rounds a launch is given: time goes to launches or to rounds by variance and cost."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Seconds that those of any later launch may take: what is left of their noise is the launch's.
_MOST_S = 3.0
# With fewer rounds an outlier moves any location, and its error is not known.
_LEAST_ROUNDS = 5
# As many are run however noisy launches are, where they take no longer than this together.
_USUAL_ROUNDS = 10
_USUAL_S = 10.0
_MOST_ROUNDS = 1000
# Ten times what a round of either arm would take by itself: where one is slower by so much, it
# does not matter how well the other's rounds are timed.
_LONGEST_ROUND_S = 0.1
# The rule decides a true slowdown at the limit in four pairs, with Bonferroni's share of 8 cells,
# if the standard deviation of a pair is at most this part of the gap from tolerance to limit:
# 4.0 (Student's t, 11 degrees of freedom, one in 1600) / sqrt(4), and half as much for power.
_PART_OF_GAP = 1 / 3.5
# Without history the rule decides on no fewer, and fewer say nothing of how launches vary.
LEAST_PAIRS = 3


class PairCost(NamedTuple):
    """What one pair of a cell gave, and its seconds: of a round of both arms, and beside rounds."""

    log_ratio: float
    error: float
    num_rounds: int
    round_s: float
    launch_s: float


def agree_on_iterations(num_iterations: Sequence[int], iteration_s: Sequence[float]) -> int:
    """Return the iterations of a round, the same in all arms, from what each would run by itself.

    As many as the fastest arm needs, unless the slowest would take far too long over them.
    """
    slowest_s = max(iteration_s)
    most = int(_LONGEST_ROUND_S / slowest_s) if slowest_s > 0 else max(num_iterations)
    return min(max(num_iterations), max(most, min(num_iterations)))


def first_num_rounds(round_s: float, launch_s: float) -> int:
    """Return how many rounds of one arm a first launch is given, in `launch_s` together."""
    return _within(launch_s / round_s, _MOST_ROUNDS, round_s)


def plan_num_rounds(pairs: Sequence[PairCost], *, tolerance: float, limit: float) -> int:
    """Return how many rounds the next launch is given.

    As many as make four pairs enough, if rounds can. Never more than the split with the least
    variance for its cost, sd of a round / sd of a launch * sqrt(cost of a launch / cost of a round)
    (Kalibera and Jones 2013, "Rigorous Benchmarking in Reasonable Time", section 8). Until three
    pairs show what launches vary by, rounds take no longer than what is paid beside them.
    """
    round_variance = statistics.median([pair.error**2 * pair.num_rounds for pair in pairs])
    round_s = statistics.median([pair.round_s for pair in pairs])
    launch_s = statistics.median([pair.launch_s for pair in pairs])
    # What the results of pairs vary by beyond the error that their rounds explain.
    launch_variance = 0.0
    if len(pairs) >= LEAST_PAIRS:
        spread = statistics.variance([pair.log_ratio for pair in pairs])
        launch_variance = max(0.0, spread - statistics.median([one.error**2 for one in pairs]))
    left = ((math.log1p(limit) - math.log1p(tolerance)) * _PART_OF_GAP) ** 2 - launch_variance
    num_rounds = round_variance / left if left > 0 else math.inf
    if len(pairs) < LEAST_PAIRS:
        num_rounds = min(num_rounds, max(pairs[0].num_rounds, launch_s / round_s))
    elif launch_variance > 0:
        split = math.sqrt(round_variance / launch_variance * launch_s / round_s)
        num_rounds = min(num_rounds, split)
    # A round of both arms has one of each.
    return _within(num_rounds, min(_MOST_ROUNDS, 2 * _MOST_S / round_s), round_s / 2)


def _within(num_rounds: float, most: float, round_s: float) -> int:
    usual = max(_LEAST_ROUNDS, min(_USUAL_ROUNDS, math.floor(_USUAL_S / round_s)))
    return max(usual, math.ceil(min(num_rounds, most)))
