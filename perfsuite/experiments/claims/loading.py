"""Claims about loading data: C1, C2, C3.

On LeNet's images with the random affine augmentation of the quoted runs, loaded one at a time:
MNIST's where they lie on the disk, else scikit-learn's digits at the same size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfsuite.errors import WorkloadError
from perfsuite.experiments.claims.claim import (
    TOO_NOISY,
    Bench,
    ClaimFinding,
    as_figure,
    weigh_interval,
)
from perfsuite.experiments.interleave import Cell
from perfsuite.experiments.sweep import find_hurts_from, find_optimum, is_slower
from perfsuite.records.cell import Outcome
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval
from perfsuite.units import format_ratio, format_seconds


@dataclass(frozen=True, kw_only=True)
class Images:
    """Two workloads that differ by the augmentation alone."""

    augmented: str
    plain: str


MNIST = Images(augmented="lenet-mnist-affine", plain="lenet-mnist")
DIGITS = Images(augmented="lenet-digits-affine", plain="lenet-digits")

# Where the quoted curve falls, is at its best, and has risen again, with its end.
_SWEPT = (0, 1, 2, 4, 7, 10)
_QUOTED_BEST = 2
_QUOTED_WORKERS = (0, 2, 4)
_NUM_REPETITIONS = 4
# "About half" is nearer to a half than to a quarter or to three quarters.
_ABOUT_HALF = (0.375, 0.625)


def find_images(bench: Bench) -> Images:
    """Return the quoted runs' images where this machine has them, else those that it always has."""
    try:
        bench.count(MNIST.augmented, Recipe())
    except WorkloadError as error:
        bench.say(f"with {DIGITS.augmented}: {error}")
        return DIGITS
    return MNIST


def try_workers(bench: Bench) -> ClaimFinding:
    """C1: whether loading is fastest with 2 workers, slower with fewer and with many."""
    workload = find_images(bench).augmented
    cells = {
        count: Cell(workload=workload, recipe=Recipe(num_workers=count), activity="load")
        for count in _SWEPT
    }
    series = bench.measure(cells, num_repetitions=_NUM_REPETITIONS)
    finding = weigh_workers({count: one.times_s for count, one in series.items()})
    return finding.on(workload)


def weigh_workers(times_s: Mapping[int, Sequence[float]]) -> ClaimFinding:
    """Return what the times of loading a batch, by number of workers, say of C1."""
    fewer = [count for count in times_s if count < _QUOTED_BEST]
    falls = all(is_slower(times_s[count], times_s[_QUOTED_BEST]) for count in fewer)
    optimum, hurts_from = find_optimum(times_s), find_hurts_from(times_s)
    centres = {count: geometric_interval(times) for count, times in times_s.items()}
    quick = ", ".join(f"{count}: {format_seconds(one.centre)}" for count, one in centres.items())
    fall = "falls to 2 workers" if falls else "does not fall to 2 workers beyond noise"
    rise = (
        "does not rise again beyond noise"
        if hurts_from is None
        else f"is worse from {hurts_from} on"
    )
    return ClaimFinding(
        status="holds" if falls and hurts_from is not None else "does not hold",
        figures={
            "times_s": {count: as_figure(one) for count, one in centres.items()},
            "optimum": optimum,
            "hurts_from": hurts_from,
        },
        here=f"optimum {optimum} ({quick})",
        reason=f"the time of a batch {fall}, and {rise}",
    )


def try_bound(bench: Bench) -> ClaimFinding:
    """C2: whether small-batch LeNet waits for its data longer than it computes."""
    workload = find_images(bench).augmented
    cells = {
        count: Cell(workload=workload, recipe=Recipe(num_workers=count))
        for count in _QUOTED_WORKERS
    }
    series = bench.measure(cells, num_repetitions=_NUM_REPETITIONS)
    finding = weigh_bound(
        {
            count: [(_load_s(outcome), _update_s(outcome)) for outcome in one.outcomes]
            for count, one in series.items()
        }
    )
    return finding.on(workload)


def weigh_bound(times_s: Mapping[int, Sequence[tuple[float, float]]]) -> ClaimFinding:
    """Return what (load, update) seconds of a batch, by number of workers, say of C2.

    The claim is about loading in the training process itself, without workers.
    """
    ratios = {
        count: geometric_interval([load_s / update_s for load_s, update_s in times])
        for count, times in times_s.items()
    }
    means = {
        count: (
            geometric_interval([load_s for load_s, _ in times]).centre,
            geometric_interval([update_s for _, update_s in times]).centre,
        )
        for count, times in times_s.items()
    }
    alone = ratios[0]
    status = weigh_interval(alone, low=1.0)
    return ClaimFinding(
        status=status,
        figures={
            str(count): {
                "load_s": means[count][0],
                "update_s": means[count][1],
                "load_per_update": as_figure(ratios[count]),
            }
            for count in times_s
        },
        here="; ".join(
            f"{count} workers {format_seconds(load_s)} / {format_seconds(update_s)}"
            for count, (load_s, update_s) in means.items()
        ),
        reason=(
            f"without workers loading takes {alone.centre:.2g} times as long as the update "
            f"(between {alone.low:.2g} and {alone.high:.2g})"
            f"{TOO_NOISY if status == 'cannot be tested here' else ''}"
        ),
    )


def try_augmentation(bench: Bench) -> ClaimFinding:
    """C3: whether the random affine augmentation is about half of the time of loading."""
    images = find_images(bench)
    cells = {
        workload: Cell(workload=workload, recipe=Recipe(), activity="load")
        for workload in (images.augmented, images.plain)
    }
    series = bench.measure(cells, num_repetitions=_NUM_REPETITIONS)
    finding = weigh_augmentation(series[images.augmented].times_s, series[images.plain].times_s)
    return finding.on(images.augmented)


def weigh_augmentation(augmented_s: Sequence[float], plain_s: Sequence[float]) -> ClaimFinding:
    """Return what the times of loading a batch, with augmentation and without, say of C3."""
    plain_share = geometric_interval(
        [plain / augmented for plain, augmented in zip(plain_s, augmented_s, strict=True)]
    )
    share = Interval(
        centre=1 - plain_share.centre, low=1 - plain_share.high, high=1 - plain_share.low
    )
    low, high = _ABOUT_HALF
    status = weigh_interval(share, low=low, high=high)
    augmented, plain = (geometric_interval(times).centre for times in (augmented_s, plain_s))
    between = f"between {format_ratio(share.low)} and {format_ratio(share.high)}"
    because = {
        "holds": "",
        "does not hold": "; images that lie in memory as tensors leave little else to do"
        if share.low > high
        else "",
        "cannot be tested here": TOO_NOISY,
    }[status]
    return ClaimFinding(
        status=status,
        figures={"augmented_s": augmented, "plain_s": plain, "share": as_figure(share)},
        here=f"{format_seconds(augmented)} with it, {format_seconds(plain)} without",
        reason=(
            f"the augmentation is {format_ratio(share.centre)} of the load time ({between})"
            f"{because}"
        ),
    )


def _load_s(outcome: Outcome) -> float:
    load_s = outcome.record.stages_s.load
    assert load_s is not None, "a training step loads"
    return load_s


def _update_s(outcome: Outcome) -> float:
    stages = outcome.record.stages_s
    return sum(part or 0.0 for part in (stages.forward, stages.backward, stages.optimizer))
