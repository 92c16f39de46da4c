"""Claims about loading LeNet's images, one at a time and augmented as quoted: C1, C2, C3."""

from perfsuite.errors import WorkloadError
from perfsuite.experiments.claims.claim import NOISE, ClaimFinding, claim, weigh, weigh_interval
from perfsuite.experiments.interleave import Bench, Cell, paired_ratio
from perfsuite.experiments.sweep import find_hurts_from, find_optimum, intervals_of, is_slower
from perfsuite.records.cell import StageTimes
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval
from perfsuite.units import format_ratio, format_seconds

# A workload with the augmentation has the plain one's name and this.
_AUGMENTED = "-affine"
MNIST = f"lenet-mnist{_AUGMENTED}"
DIGITS = f"lenet-digits{_AUGMENTED}"
# Where the quoted curve falls, is at its best, and has risen again, with its end.
_SWEPT = (0, 1, 2, 4, 7, 10)
_QUOTED_TIMES = "load / update: at 0 workers 6.4 / 1.1 ms, at 2 4.3 / 1.2 ms, at 4 0.5 / 1.2 ms"
_QUOTED_BEST = 2
_QUOTED_WORKERS = (0, 2, 4)
# "About half" is nearer to a half than to a quarter or to three quarters.
_ABOUT_HALF = (0.375, 0.625)


def find_images(bench: Bench) -> str:
    """Return MNIST's images where they lie on the disk, else scikit-learn's of the same size."""
    try:
        bench.count(MNIST, Recipe())
    except WorkloadError as error:
        bench.say(f"with {DIGITS}: {error}")
        return DIGITS
    return MNIST


@claim("C1", quoted="best at 2 workers of 0..10; at 7 and more slower than at 0", source="S0, S1")
def try_workers(bench: Bench) -> ClaimFinding:
    """Loading time falls sharply to 2 workers, then flattens, and rises again."""
    workload = find_images(bench)
    cells = {count: Cell(workload, Recipe(num_workers=count), "load") for count in _SWEPT}
    times_s = bench.measure_times_s(cells)
    fewer = [count for count in times_s if count < _QUOTED_BEST]
    falls = all(is_slower(times_s[count], times_s[_QUOTED_BEST]) for count in fewer)
    optimum, hurts_from = find_optimum(times_s), find_hurts_from(times_s)
    centres = intervals_of(times_s)
    quick = ", ".join(f"{count}: {format_seconds(one.centre)}" for count, one in centres.items())
    fall = "falls to 2 workers" if falls else "does not fall to 2 workers beyond noise"
    rise = f"is worse from {hurts_from} on" if hurts_from else "does not rise again beyond noise"
    found = f"the time of a batch {fall}, and {rise} ({quick})"
    figures = {"times_s": centres, "optimum": optimum, "hurts_from": hurts_from}
    return weigh(falls and hurts_from is not None, found, **figures).on(workload)


@claim("C2", quoted=_QUOTED_TIMES, source="S3")
def try_bound(bench: Bench) -> ClaimFinding:
    """Small-batch LeNet training is bound by data loading, not by compute."""
    workload = find_images(bench)
    cells = {count: Cell(workload, Recipe(num_workers=count)) for count in _QUOTED_WORKERS}
    figures, here, ratios = {}, [], {}
    for count, outcomes in bench.measure(cells).items():
        times_s = [_load_and_update_s(each.record.stages_s) for each in outcomes]
        loads_s, updates_s = zip(*times_s, strict=True)
        load_s, update_s = (geometric_interval(one).centre for one in (loads_s, updates_s))
        ratio = ratios[count] = paired_ratio(loads_s, updates_s)
        figures[str(count)] = {"load_s": load_s, "update_s": update_s, "load_per_update": ratio}
        here.append(f"{count} workers {format_seconds(load_s)} / {format_seconds(update_s)}")
    alone = ratios[0]  # the claim is about loading in the training process itself
    status = weigh_interval(alone, low=1.0)
    return weigh(
        status,
        f"without workers loading takes {alone.centre:.2g} times as long as the update (between "
        f"{alone.low:.2g} and {alone.high:.2g}){NOISE.get(status, '')}; {', '.join(here)}",
        **figures,
    ).on(workload)


@claim("C3", quoted="6.42 ms a batch with it, 3.30 ms without", source="S3")
def try_augmentation(bench: Bench) -> ClaimFinding:
    """The random affine augmentation is about half of the load time."""
    augmented = find_images(bench)
    workloads = augmented, augmented.removesuffix(_AUGMENTED)
    times_s = bench.measure_times_s({name: Cell(name, Recipe(), "load") for name in workloads})
    augmented_s, plain_s = times_s.values()
    rest = paired_ratio(plain_s, augmented_s)
    share = Interval(centre=1 - rest.centre, low=1 - rest.high, high=1 - rest.low)
    low, high = _ABOUT_HALF
    status = weigh_interval(share, low=low, high=high)
    with_it_s, without_s = (geometric_interval(times).centre for times in times_s.values())
    why = NOISE.get(status, "")
    if share.low > high:
        why = "; images that lie in memory as tensors leave little else to do"
    found = (
        f"{format_seconds(with_it_s)} with it, {format_seconds(without_s)} without: the "
        f"augmentation is {format_ratio(share.centre)} of the load time (between "
        f"{format_ratio(share.low)} and {format_ratio(share.high)}){why}"
    )
    figures = {"augmented_s": with_it_s, "plain_s": without_s, "share": share}
    return weigh(status, found, **figures).on(augmented)


def _load_and_update_s(stages_s: StageTimes) -> tuple[float, float]:
    assert stages_s.load is not None, "a training step loads"
    parts = (stages_s.forward, stages_s.backward, stages_s.optimizer)
    return stages_s.load, sum(part or 0.0 for part in parts)
