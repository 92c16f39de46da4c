"""Claims about DataParallel and DistributedDataParallel: C4, C5, C6."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from perfsuite.errors import NotExercisedError
from perfsuite.experiments.claims.claim import ClaimFinding, Status, claim, weigh
from perfsuite.experiments.claims.loading import find_images
from perfsuite.experiments.interleave import Bench, Cell, paired_ratio
from perfsuite.records.capability import Hardware
from perfsuite.records.recipe import Recipe
from perfsuite.stats.intervals import Interval, geometric_interval
from perfsuite.system.gpus import visible_gpus
from perfsuite.system.usage import UsageLog, UsageSample, open_meter
from perfsuite.units import format_ratio

# Processes of the quoted runs.
_NUM_QUOTED_GPUS = 8
_QUOTED_TIMES = "1-process DDP against baseline: 75.58 / 72.80 s at 0 workers, 20.27 / 18.47 s at 4"
_QUOTED_USAGE = "GPU utilisation: DP 8 % on device 0 and 1 % elsewhere, DDP 40-60 % on each"
_NUM_WORKERS = 4
# They take seconds at least, enough for several samples of NVML.
_NUM_WATCHED_EPOCHS = 2

# (parallel, num_workers)
Setting = tuple[str, int]
# The time of one setting over another's.
_FACTORS: dict[str, tuple[Setting, Setting]] = {
    "total": (("ddp:1", _NUM_WORKERS), ("single", 0)),
    "workers": (("single", _NUM_WORKERS), ("single", 0)),
    "ddp_at_0_workers": (("ddp:1", 0), ("single", 0)),
    "ddp_at_4_workers": (("ddp:1", _NUM_WORKERS), ("single", _NUM_WORKERS)),
}


def _require_gpus(hardware: Hardware) -> None:
    if hardware.device != "cuda" or hardware.num_gpus < 2:
        needed = f"2 GPUs or more ({_NUM_QUOTED_GPUS} in the quoted runs)"
        raise NotExercisedError(f"it needs {needed}, and {hardware.num_gpus} are here")


@claim("C4", quoted="baseline 73 s, DDP on 8 GPUs 26 s, DP on 8 GPUs 161 s", source="S3")
def try_modes(bench: Bench) -> ClaimFinding:
    """DP slows LeNet training down, and DDP seems to speed it up."""
    hardware = bench.session.hardware
    _require_gpus(hardware)
    size = min(hardware.num_gpus, _NUM_QUOTED_GPUS)
    workload = find_images(bench)
    cells = {
        "single": Cell(workload, Recipe()),
        "dp": Cell(workload, Recipe(parallel=f"dp:{size}")),
        "ddp": Cell(workload, Recipe(parallel=f"ddp:{size}", num_workers=_NUM_WORKERS)),
    }
    times_s: dict[str, list[float]] = {}
    for name, outcomes in bench.measure(cells).items():
        rates = [outcome.record.samples_per_s for outcome in outcomes]
        times_s[name] = [1 / rate for rate in rates if rate is not None]  # training has samples
    dp, ddp = (paired_ratio(times_s[mode], times_s["single"]) for mode in ("dp", "ddp"))
    return weigh(
        dp.low > 1 and ddp.high < 1,
        f"a sample takes x{_times(dp)} as long with DP, x{_times(ddp)} with DDP",
        seconds_per_sample={name: geometric_interval(times) for name, times in times_s.items()},
        dp_per_single=dp,
        ddp_per_single=ddp,
    ).on(workload)


@claim("C5", quoted=_QUOTED_TIMES, source="S3")
def try_attribution(bench: Bench) -> ClaimFinding:
    """The gain of DDP comes from its 4 loader workers, not from parallelism."""
    workload = find_images(bench)
    cells = {
        (parallel, num_workers): Cell(workload, Recipe(parallel=parallel, num_workers=num_workers))
        for parallel in ("single", "ddp:1")
        for num_workers in (0, _NUM_WORKERS)
    }
    times_s = bench.measure_times_s(cells)
    # total = workers x DDP at equal workers, in each repetition and so on average.
    factors = {
        name: paired_ratio(times_s[setting], times_s[base])
        for name, (setting, base) in _FACTORS.items()
    }
    ddp = factors["ddp_at_0_workers"], factors["ddp_at_4_workers"]
    status, reason = _attribute(factors["workers"], ddp)
    spelled = ", ".join(f"{name.replace('_', ' ')} x{_times(one)}" for name, one in factors.items())
    means = {
        f"{parallel}, {num_workers} workers": geometric_interval(times)
        for (parallel, num_workers), times in times_s.items()
    }
    return weigh(status, f"{reason}: {spelled}", iteration_s=means, factors=factors).on(workload)


def _attribute(workers: Interval, ddp: Sequence[Interval]) -> tuple[Status, str]:
    """Whether the workers gain, beyond noise and more than DDP can at equal numbers of workers."""
    if any(factor.high < 1 for factor in ddp):
        return "does not hold", "DDP by itself, at equal num_workers, is faster here"
    if workers.low > 1:
        return "does not hold", "4 workers cost time here, so there is no gain to attribute"
    if workers.high < min(1.0, *(factor.low for factor in ddp)):
        return "holds", "the workers gain time, and DDP at equal num_workers gains none"
    return "cannot be tested here", "the noise is too large to say where a gain comes from"


@claim("C6", quoted=_QUOTED_USAGE, source="S3")
def try_usage(bench: Bench) -> ClaimFinding:
    """DP gathers on device 0 and leaves the others idle; DDP keeps all busy."""
    _require_gpus(bench.session.hardware)
    workload = find_images(bench)
    gpus = visible_gpus()[:_NUM_QUOTED_GPUS]
    usage = {}
    for mode in ("dp", "ddp"):
        recipe = Recipe(parallel=f"{mode}:{len(gpus)}", num_workers=_NUM_WORKERS)
        with ExitStack() as stack:
            meters = [stack.enter_context(open_meter(gpu.uuid)) for gpu in gpus]
            logs = [UsageLog(meter) for meter in meters if meter is not None]
            if len(logs) < len(gpus):
                raise NotExercisedError("NVML, which tells how busy a GPU is, cannot be loaded")
            bench.session.profile(workload, recipe, num_epochs=_NUM_WATCHED_EPOCHS)
            usage[mode] = [mean_usage(log.stop()) for log in logs]
    return weigh_usage(usage).on(workload)


def mean_usage(samples: Sequence[UsageSample]) -> float:
    """Return the mean busy share of a GPU over the samples that have one."""
    shares = [one.utilization_ratio for one in samples if one.utilization_ratio is not None]
    if not shares:
        raise NotExercisedError("a GPU does not report how busy it is (MIG instances never do)")
    return sum(shares) / len(shares)


def weigh_usage(usage: Mapping[str, Sequence[float]]) -> ClaimFinding:
    """Return what the mean busy share of each GPU under "dp" and "ddp" says of C6."""
    dp, ddp = usage["dp"], usage["ddp"]
    leaves_idle = max(dp[1:]) < dp[0] / 2
    keeps_busy = min(ddp) > max(ddp) / 2
    # "Idle" is less than half as busy as the first GPU, "busy" half as busy as the busiest.
    spelled = {mode: ", ".join(map(format_ratio, shares)) for mode, shares in usage.items()}
    return weigh(
        leaves_idle and keeps_busy,
        f"the GPUs are busy {spelled['dp']} of the time under DP, {spelled['ddp']} under DDP",
        **{f"{mode}_utilization": list(shares) for mode, shares in usage.items()},
    )


def _times(interval: Interval) -> str:
    return f"{interval.centre:.2f} ({interval.low:.2f} to {interval.high:.2f})"
