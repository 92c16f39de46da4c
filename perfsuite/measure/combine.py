"""The times of a cell from the times of its ranks. Must not import torch: the controller does this.

Every function takes the rounds of each rank, in rank order, and the ranks agree on their number.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfsuite.measure.results import RoundTimes
from perfsuite.records import StageTimes


def slowest_rank_times(
    rounds_by_rank: Sequence[Sequence[RoundTimes]], num_iterations: int
) -> list[float]:
    """Return seconds per iteration of each round: the slowest rank's from the common start.

    Args:
        rounds_by_rank: The rounds of each rank.
        num_iterations: Iterations of one round.

    Raises:
        ValueError: The ranks have different numbers of rounds.

    >>> fast = RoundTimes(duration_s=0.5, stages_s={})
    >>> slow = RoundTimes(duration_s=1.0, stages_s={})
    >>> slowest_rank_times([[fast, fast], [slow, fast]], num_iterations=2)
    [0.5, 0.25]
    """
    return [
        max(times.duration_s for times in ranks) / num_iterations
        for ranks in zip(*rounds_by_rank, strict=True)
    ]


def combine_stages(
    rounds_by_rank: Sequence[Sequence[RoundTimes]], num_iterations: int
) -> StageTimes:
    """Return seconds per iteration of each stage: the maximum over ranks of the rank's mean.

    The stages may come from different ranks, so they need not add up to the step time. `other` is
    a rank's duration less its stages, again the maximum over ranks. It is not below 0: on a GPU
    the loading of a batch overlaps with the device's work, and both are counted in full.

    Args:
        rounds_by_rank: The rounds of each rank, at least one.
        num_iterations: Iterations of one round.

    >>> rounds = [RoundTimes(duration_s=1.0, stages_s={"load": 0.25, "forward": 0.5})]
    >>> times = combine_stages([rounds], num_iterations=1)
    >>> times.load, times.forward, times.backward, times.other
    (0.25, 0.5, None, 0.25)
    """
    means = [_mean_stages(rounds, num_iterations) for rounds in rounds_by_rank]
    return StageTimes(
        load=_greatest(means, "load"),
        forward=_greatest(means, "forward"),
        backward=_greatest(means, "backward"),
        optimizer=_greatest(means, "optimizer"),
        evaluation=_greatest(means, "evaluation"),
        other=_greatest(means, "other"),
    )


def _mean_stages(rounds: Sequence[RoundTimes], num_iterations: int) -> dict[str, float]:
    totals: dict[str, float] = {}
    for times in rounds:
        for name, seconds in times.stages_s.items():
            totals[name] = totals.get(name, 0.0) + seconds
    in_no_stage = sum(times.duration_s for times in rounds) - sum(totals.values())
    totals["other"] = max(0.0, in_no_stage)
    return {name: total / (len(rounds) * num_iterations) for name, total in totals.items()}


def _greatest(means: Sequence[dict[str, float]], name: str) -> float | None:
    return max((mean[name] for mean in means if name in mean), default=None)
