"""How many loader workers pay off: which is the fewest within noise of the best, when more hurt.

Every number of workers is measured once in each repetition, so two numbers are compared by the
ratios within repetitions, which are free of the machine's drift.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfsuite.experiments.interleave import Cell, CellTimes, measure_interleaved, paired_ratio
from perfsuite.experiments.rank_session import Session
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval

Times = Mapping[int, Sequence[float]]
Activity = Literal["train", "load"]

# A gain of more than the gate's tolerance is worth a process; advice against workers needs proof
# that there is none.
_WORTHWHILE_RATIO = 0.02


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One activity over the numbers of workers.

    Attributes:
        times_s: Seconds of an iteration in each repetition, by number of workers, ascending.
    """

    times_s: dict[int, tuple[float, ...]]

    @property
    def intervals(self) -> dict[int, Interval]:
        """Where the time of each number of workers lies."""
        return {count: geometric_interval(times) for count, times in self.times_s.items()}

    @property
    def optimum(self) -> int:
        """The fewest workers within noise of the fastest."""
        return find_optimum(self.times_s)

    @property
    def hurts_from(self) -> int | None:
        """The number of workers from which on more of them hurt, None if none do."""
        return find_hurts_from(self.times_s)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep found.

    Attributes:
        training: Seconds of an optimizer step, loading included.
        loading: Seconds of a batch out of the loader, nothing done with it.
    """

    training: Curve
    loading: Curve


def sweep_workers(
    session: Session,
    workload: str,
    recipe: Recipe,
    counts: Sequence[int],
    *,
    num_repetitions: int,
    seed: int,
    say: Callable[[str], None],
) -> Sweep:
    """Return the times of a workload under each number of loader workers.

    Args:
        session: Runs the cells, and holds the machine from here on.
        workload: A name, or "module:attribute".
        recipe: How it is trained, whatever its number of workers.
        counts: Numbers of workers, ascending.
        num_repetitions: Launches of each.
        seed: Of the order of launches.
        say: Shows a line for each launch.

    Raises:
        PerfsuiteError: As `Session.measure_cell`.
    """
    activities: tuple[Activity, ...] = ("train", "load")
    cells = {
        f"{activity} with num_workers={count}": Cell(
            workload=workload, recipe=with_workers(recipe, count), activity=activity
        )
        for activity in activities
        for count in counts
    }
    series = measure_interleaved(
        session, cells, num_repetitions=num_repetitions, seed=seed, say=say
    )
    return Sweep(training=_curve(series, "train", counts), loading=_curve(series, "load", counts))


def with_workers(recipe: Recipe, num_workers: int) -> Recipe:
    """Return the recipe with so many workers, without what needs some where there are none."""
    if num_workers == 0:
        return dataclasses.replace(
            recipe, num_workers=0, persistent_workers=False, prefetch_factor=None
        )
    return dataclasses.replace(recipe, num_workers=num_workers)


def is_slower(times_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Whether times are beyond noise above others that were taken beside them.

    >>> is_slower([2.0, 2.1, 2.2], [1.0, 1.1, 1.2]), is_slower([2.0, 1.0], [1.0, 2.0])
    (True, False)
    """
    return paired_ratio(times_s, others_s).low > 1


def find_optimum(times_s: Times) -> int:
    """Return the fewest workers that are not slower, beyond noise, than the fastest number.

    >>> find_optimum({0: [2.0, 2.2, 2.1], 1: [1.0, 1.2, 1.1], 2: [1.1, 1.1, 1.0]})
    1
    """
    return find_within_noise(times_s)[0]


def find_within_noise(times_s: Times) -> list[int]:
    """Return all numbers of workers that are not slower, beyond noise, than the fastest."""
    fastest = min(times_s, key=lambda count: geometric_interval(times_s[count]).centre)
    return [
        count
        for count in sorted(times_s)
        if count == fastest or not is_slower(times_s[count], times_s[fastest])
    ]


def find_hurts_from(times_s: Times) -> int | None:
    """Return from which number above the optimum on all are slower beyond noise, None if none is.

    >>> good, bad = [1.0, 1.1, 1.2], [2.0, 2.1, 2.2]
    >>> find_hurts_from({0: bad, 1: good, 2: good, 3: bad, 4: bad}), find_hurts_from({1: good})
    (3, None)
    """
    optimum = find_optimum(times_s)
    first = None
    for count in sorted((count for count in times_s if count > optimum), reverse=True):
        if not is_slower(times_s[count], times_s[optimum]):
            break
        first = count
    return first


def advise(times_s: Times) -> str | None:
    """Return which number of workers to take, and why; None where the data do not say.

    More workers than the fewest are advised where they are faster beyond noise. The fewest are
    advised where no other number can be more than 2 % faster.
    """
    optimum, fewest = find_optimum(times_s), min(times_s)
    hurts_from = find_hurts_from(times_s)
    tail = "" if hurts_from is None else f"; from {hurts_from} on, more workers hurt"
    if optimum != fewest:
        if not is_slower(times_s[fewest], times_s[optimum]):
            return None
        saved = paired_ratio(times_s[optimum], times_s[fewest])
        return (
            f"use num_workers={optimum}: a step takes {_percent(1 - saved.centre)} less time than "
            f"with {fewest} (between {_percent(1 - saved.high)} and {_percent(1 - saved.low)})"
            f"{tail}"
        )
    gains = [
        1 - paired_ratio(times_s[count], times_s[fewest]).low for count in times_s if count > fewest
    ]
    if not gains or max(gains) > _WORTHWHILE_RATIO:
        return None
    return f"use num_workers={fewest}: no other number makes a step faster{tail}"


def _percent(ratio: float) -> str:
    return f"{ratio:.0%}"


def _curve(series: Mapping[str, CellTimes], activity: Activity, counts: Sequence[int]) -> Curve:
    return Curve(
        times_s={count: series[f"{activity} with num_workers={count}"].times_s for count in counts}
    )
