"""How many loader workers pay off: the fewest within noise of the best, and when more hurt."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from perfsuite.experiments.interleave import Bench, Cell, paired_ratio
from perfsuite.ranks.messages import ActivityName
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval

# Seconds of an iteration in each repetition, by number of workers, ascending.
Times = Mapping[int, Sequence[float]]
_ACTIVITIES: tuple[ActivityName, ...] = ("train", "load")

# A gain over the gate's tolerance is worth a process; advice against workers needs proof of none.
_WORTHWHILE_RATIO = 0.02


def sweep_workers(
    bench: Bench, workload: str, recipe: Recipe, counts: Sequence[int]
) -> tuple[Times, Times]:
    """Return times of an optimizer step and of loading a batch alone, by ascending `counts`."""
    cells = {}
    for activity, count in itertools.product(_ACTIVITIES, counts):
        cell = Cell(workload, with_workers(recipe, count), activity)
        cells[f"{activity} with num_workers={count}"] = cell
    times_s = [*bench.measure_times_s(cells).values()]
    training, loading = times_s[: len(counts)], times_s[len(counts) :]
    return dict(zip(counts, training, strict=True)), dict(zip(counts, loading, strict=True))


def with_workers(recipe: Recipe, num_workers: int) -> Recipe:
    """Return the recipe with this number of workers; 0 resets the fields that need them."""
    if num_workers == 0:
        recipe = dataclasses.replace(recipe, persistent_workers=False, prefetch_factor=None)
    return dataclasses.replace(recipe, num_workers=num_workers)


def is_slower(times_s: Sequence[float], others_s: Sequence[float]) -> bool:
    """Whether times are beyond noise above others that were taken beside them."""
    return paired_ratio(times_s, others_s).low > 1


def intervals_of(times_s: Times) -> dict[int, Interval]:
    """Return where the time of each number of workers lies."""
    return {count: geometric_interval(times) for count, times in times_s.items()}


def find_optimum(times_s: Times) -> int:
    """Return the fewest workers that are not slower, beyond noise, than the fastest number."""
    return find_within_noise(times_s)[0]


def find_within_noise(times_s: Times) -> list[int]:
    """Return all numbers of workers that are not slower, beyond noise, than the fastest."""
    fastest = min(times_s, key=lambda count: geometric_interval(times_s[count]).centre)
    as_good = (count for count in times_s if not is_slower(times_s[count], times_s[fastest]))
    return sorted({fastest, *as_good})


def find_hurts_from(times_s: Times) -> int | None:
    """Return the least number above the optimum that is slower, as all larger ones are, or None."""
    optimum = find_optimum(times_s)
    more = sorted((count for count in times_s if count > optimum), reverse=True)
    worse = itertools.takewhile(lambda one: is_slower(times_s[one], times_s[optimum]), more)
    return min(worse, default=None)


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
        share, low, high = (f"{1 - one:.0%}" for one in (saved.centre, saved.high, saved.low))
        gain = f"a step takes {share} less time than with {fewest} (between {low} and {high})"
        return f"use num_workers={optimum}: {gain}{tail}"
    gains = [1 - paired_ratio(times_s[one], times_s[fewest]).low for one in times_s if one > fewest]
    if not gains or max(gains) > _WORTHWHILE_RATIO:
        return None
    return f"use num_workers={fewest}: no other number makes a step faster{tail}"
