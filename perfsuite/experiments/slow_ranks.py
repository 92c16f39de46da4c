"""Which rank is slow, and in which stage: what each took itself, less its waiting for another."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from perfsuite.ranks.messages import RoundTimes
from perfsuite.records.cell import StepPercentiles

# Two watched ranks with equal work differ by less.
_CLEARLY: Final = 1.5

# By stage, the seconds outside and inside of collectives.
Watched = dict[str, tuple[float, float]]


def own_stage_times(
    rounds_by_rank: Sequence[Sequence[RoundTimes]],
    num_iterations: int,
    watched_by_rank: Sequence[Sequence[Watched]] = (),
) -> dict[str, tuple[float, ...]] | None:
    """Return seconds per iteration of each stage on each rank, without waiting for a later rank.

    A rank that enters a stage before the last one does may wait for that one inside, in a
    collective. So its time in the stage counts up to what the group's progress took: from when the
    last rank entered it to when the last rank left it. Where a rank is late within the very stage
    in which the others wait, only watched iterations tell. None where spans were not kept, or the
    ranks ran different stages.

    >>> early = RoundTimes(duration_s=5.0, stages_s={}, spans=(("load", 0, 1), ("forward", 1, 5)))
    >>> late = RoundTimes(duration_s=5.0, stages_s={}, spans=(("load", 0, 4), ("forward", 4, 5)))
    >>> own_stage_times([[early], [late]], num_iterations=1)
    {'load': (1.0, 4.0), 'forward': (1.0, 1.0)}
    """
    totals: dict[str, list[float]] = {}
    num_rounds = 0
    for ranks in zip(*rounds_by_rank, strict=True):
        sequences = {tuple(name for name, _, _ in times.spans) for times in ranks}
        if len(sequences) > 1:
            return None
        num_rounds += bool(ranks[0].spans)
        for together in zip(*(times.spans for times in ranks), strict=True):
            progress_s = max(end for _, _, end in together) - max(start for _, start, _ in together)
            of_stage = totals.setdefault(together[0][0], [0.0] * len(ranks))
            for rank, (_, start, end) in enumerate(together):
                of_stage[rank] += min(end - start, progress_s)
    num_steps = num_rounds * num_iterations
    return {
        name: _without_waiting_inside(
            [max(0.0, seconds) / num_steps for seconds in of_stage],
            [
                [one.get(name, (0.0, 0.0)) for one in ranks]
                for ranks in zip(*watched_by_rank, strict=True)
            ],
        )
        for name, of_stage in totals.items()
    } or None


def _without_waiting_inside(
    times_s: Sequence[float], watched: Sequence[Sequence[tuple[float, float]]]
) -> tuple[float, ...]:
    """Each rank's time in a stage, less what it waited there as far as its time hides it."""
    found = []
    for rank, time_s in enumerate(times_s):
        waited_s = min((_lead_s(ranks, rank) for ranks in watched), default=0.0)
        hidden_s = max(0.0, waited_s - (max(times_s) - time_s))
        found.append(max(0.0, time_s - hidden_s))
    return tuple(found)


def _lead_s(ranks: Sequence[tuple[float, float]], rank: int) -> float:
    """How long a rank of a watched iteration waited for one that clearly had more to do."""
    own_s, communication_s = ranks[rank]
    slowest_s = max(one for one, _ in ranks)
    return min(slowest_s - own_s, communication_s) if slowest_s > _CLEARLY * own_s else 0.0


def slowest_ranks(own_s: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """Return the rank that took longest in each stage, the first of equal ones."""
    return {name: times_s.index(max(times_s)) for name, times_s in own_s.items()}


def step_percentiles(rounds_by_rank: Sequence[Sequence[RoundTimes]]) -> StepPercentiles | None:
    """Return percentiles of the slowest rank's steps; None where their times were not kept."""
    steps_s = sorted(
        max(of_step)
        for ranks in zip(*rounds_by_rank, strict=True)
        for of_step in zip(*(times.steps_s for times in ranks), strict=True)
    )
    if not steps_s:
        return None
    # The nearest rank: a time that a step really took.
    places = (math.ceil(share * len(steps_s)) - 1 for share in (0.5, 0.95, 0.99))
    p50, p95, p99 = (steps_s[place] for place in places)
    return StepPercentiles(p50=p50, p95=p95, p99=p99)
