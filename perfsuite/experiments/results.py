"""From the replies of the ranks to what is kept: outcomes of cells, reports of checks."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from perfsuite.errors import RecipeError
from perfsuite.ranks.messages import CellMeasured, RoundTimes, RunCell, RunChecked, Watched
from perfsuite.records import cell, equivalence
from perfsuite.records.equivalence import EquivalenceReport, Numerics
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.system.environment import difference
from perfsuite.system.gpus import peak_flops_per_s

_OF_LOADER = (
    *("loader", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor"),
    "non_blocking",
)
# Two watched ranks with equal work differ by less, mostly also beside other work.
_CLEARLY = 2.0
# No rank waits in a stage for longer than it takes, but by what two measurements of it may differ.
_MOST_WAITED = 1.1

# Of one rank.
Rounds = Sequence[RoundTimes]


def combine(
    job: RunCell, name: str, device: str, ranks: Sequence[CellMeasured], numerics: Numerics | None
) -> cell.Outcome:
    """Return one outcome from what all ranks measured."""
    first = ranks[0]
    rounds_by_rank = [rank.rounds for rank in ranks]
    step_times_s = slowest_rank_times(rounds_by_rank, first.num_iterations)
    step_s = statistics.median(step_times_s)
    samples = first.global_batch_size
    tokens = None if job.user_code is None else job.user_code.tokens_per_step
    losses = _mean_losses(ranks)
    precision = None if job.recipe is None else job.recipe.precision
    speeds, without_speed = _speeds(precision, device, ranks, step_s)
    staged = [rank.stage_rounds or rank.rounds for rank in ranks]
    own_s = own_stage_times(staged, first.num_iterations, [rank.watched_s for rank in ranks])
    missing = without_speed | _why_missing(ranks, own_s)
    if job.user_code is not None and job.user_code.kind == "step" and not losses:
        missing["losses"] = "its step returns none; return it, or call perfsuite.log_loss"
    num_devices = None
    if job.recipe is not None and job.recipe.plan.properties.runs_threads:
        num_devices = min(job.recipe.plan.size, len(first.environment.accelerators))
        if num_devices > 1:
            missing["energy_j"] = f"of the {num_devices} devices of one process one alone is read"
    compile_s = max((s for rank in ranks if (s := rank.compile_s) is not None), default=None)
    if numerics is None:
        missing.pop("numerics", None)
    elif "numerics" in missing:
        numerics = Numerics(
            status="not exercised", check=numerics.check, error=None, limit=None, power=None
        )
    moved = add_digests([tuple(rank.buffers.values()) for rank in ranks])
    record = cell.CellRecord(
        workload=name,
        recipe=None if job.recipe is None else job.recipe.as_dict(),
        device=device,
        world_size=len(ranks),
        num_devices=num_devices,
        exercised=True,
        fingerprint=None if "fingerprint" in missing else first.environment.fingerprint,
        numerics=numerics,
        stages_s=combine_stages(staged, first.num_iterations, overlaps_loading=device != "cpu"),
        counts=_busiest([rank.counts for rank in ranks]),
        memory=_memory(ranks),
        samples_per_s=None if samples is None else samples / step_s,
        tokens_per_s=None if tokens is None else tokens / step_s,
        losses=tuple(losses.values())[: cell.NUM_FIRST_LOSSES],
        verdict=None,
        operators=first.operators,
        weights=add_digests([tuple(rank.weights.values()) for rank in ranks]),
        rank_stages_s=own_s,
        slow_ranks=None if own_s is None else {name: t.index(max(t)) for name, t in own_s.items()},
        step_s=step_percentiles(rounds_by_rank),
        **speeds,
        compile_s=compile_s,
        energy_j=None if "energy_j" in missing else _energy_j(ranks),
        losses_by_step=tuple(losses.items()) or None,
        weights_steps=tuple(first.weights) or None,
        buffers=tuple(zip(first.buffers, moved or itertools.repeat(()), strict=False)) or None,
    )
    times_s, num = tuple(step_times_s), first.num_iterations
    return cell.Outcome(step_times_s=times_s, num_iterations=num, record=record, missing=missing)


def _mean_losses(ranks: Sequence[CellMeasured]) -> dict[int, float]:
    told = [rank.losses for rank in ranks if rank.losses is not None]
    return {
        step: sum(one[step] for one in told) / len(told)
        for step in (told[0] if told else ())
        if all(step in one for one in told)  # a user's own code may tell fewer on one rank
    }


def _why_missing(ranks: Sequence[CellMeasured], own_s: object) -> dict[str, str]:
    # A reason that only one rank knows, such as the one with a pipeline's LSTM, holds for the cell.
    missing = {name: why for rank in reversed(ranks) for name, why in rank.missing.items()}
    if own_s is None and len(ranks) > 1:
        missing["slow_ranks"] = "the ranks ran different stages"
    for rank, one in enumerate(ranks):  # a cell of several environments belongs to none
        if differs := difference(ranks[0].environment, one.environment):
            missing.setdefault("fingerprint", f"rank 0 and rank {rank} differ: {differs}")
    return missing


def _speeds(
    precision: str | None, device: str, ranks: Sequence[CellMeasured], step_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return TFLOP/s of a device, MFU and HFU, as far as they are known, and why one is missing."""
    counts = [rank.counts for rank in ranks]
    model = [one.model_flops for one in counts if one.model_flops is not None]
    with_recomputation = [one.flops for one in counts if one.flops is not None]
    speeds: dict[str, Any] = dict.fromkeys(("tflops", "mfu", "hfu"))
    if len(model) < len(ranks) or not any(model):
        return speeds, {}  # the counts say why, or there is no model
    speeds["tflops"] = statistics.fmean(model) / step_s / 1e12
    if precision is None:
        return speeds, {"mfu": "the precision of a user's own code is not known"}
    accelerators = {gpu for rank in ranks for gpu in rank.environment.accelerators}
    # A part of a GPU that is cut has no peak of its own.
    gpus = {gpu if "MIG on" in gpu else gpu.split(", ")[0] for gpu in accelerators}
    peaks = {peak_flops_per_s(gpu, precision) for gpu in gpus or {device}}
    peak = peaks.pop()
    if peaks or peak is None:
        name = " and ".join(sorted(gpus)) or device
        return speeds, {"mfu": f"the table of peaks has none of {name} in {precision}"}
    speeds["mfu"] = statistics.fmean(model) / step_s / peak
    speeds["hfu"] = statistics.fmean(with_recomputation) / step_s / peak
    return speeds, {}


def _energy_j(ranks: Sequence[CellMeasured]) -> float | None:
    """The joules of all devices, each counted once where ranks share it."""
    used_j = [rank.energy_j for rank in ranks if rank.energy_j is not None]
    return math.fsum(dict(used_j).values()) if len(used_j) == len(ranks) else None


def _busiest(counts: Sequence[cell.Counts]) -> cell.Counts:
    names = cell.Counts.__struct_fields__
    by_name = {name: [getattr(one, name) for one in counts] for name in names}
    return cell.Counts(**{name: None if None in of else max(of) for name, of in by_name.items()})


def add_digests(
    ranks: Sequence[tuple[tuple[cell.TensorDigest, ...], ...]],
) -> tuple[tuple[cell.TensorDigest, ...], ...] | None:
    """Return the digests of all ranks' weights, as if those of one place were one tensor.

    >>> add_digests([[[cell.TensorDigest(2, 3.0, 5.0)]]] * 2)[0][0].total
    6.0
    """
    steps = [
        tuple(
            cell.TensorDigest(*map(sum, zip(*map(msgspec.structs.astuple, parts), strict=True)))
            for parts in itertools.zip_longest(*step, fillvalue=cell.TensorDigest(0, 0.0, 0.0))
        )
        for step in zip(*ranks, strict=False)
    ]
    return tuple(steps) if any(steps) else None


def _memory(ranks: Sequence[CellMeasured]) -> cell.Memory | None:
    peaks = [rank.peak for rank in ranks if rank.peak is not None]
    if len(peaks) < len(ranks):
        return None
    per_rank = tuple(peak.peak_bytes for peak in peaks)
    reserved = [peak.reserved_bytes for peak in peaks if peak.reserved_bytes is not None]
    metric, most, held = peaks[0].metric, max(per_rank), max(reserved, default=None)
    return cell.Memory(metric=metric, peak_bytes=most, per_rank=per_rank, reserved_bytes=held)


def slowest_rank_times(rounds_by_rank: Sequence[Rounds], num_iterations: int) -> list[float]:
    """Return seconds per iteration of each round: the slowest rank's from the common start."""
    rounds = zip(*rounds_by_rank, strict=True)
    return [max(one.duration_s for one in ranks) / num_iterations for ranks in rounds]


def combine_stages(
    rounds_by_rank: Sequence[Rounds], num_iterations: int, *, overlaps_loading: bool = False
) -> cell.StageTimes:
    """Return seconds per iteration of each stage: the maximum over ranks of the rank's mean.

    The stages may come from different ranks, so they need not add up to the step time. `other` is
    a rank's duration less its stages: on an accelerator copies, and the wait for a batch. There
    the host's "load" is beside the duration, which may have waited for `load_exposed` of it.
    """
    means = [_mean_stages(rounds, num_iterations, overlaps_loading) for rounds in rounds_by_rank]
    names = cell.StageTimes.__struct_fields__
    most = {name: max((one[name] for one in means if name in one), default=None) for name in names}
    return cell.StageTimes(**most)


def _mean_stages(rounds: Rounds, num_iterations: int, overlaps_loading: bool) -> dict[str, float]:
    totals: dict[str, float] = {}
    for times in rounds:
        for name, seconds in times.stages_s.items():
            totals[name] = totals.get(name, 0.0) + seconds
    within_s = sum(totals.values()) - (totals.get("load", 0.0) if overlaps_loading else 0.0)
    totals["other"] = max(0.0, sum(times.duration_s for times in rounds) - within_s)
    if overlaps_loading and "load" in totals:
        totals["load_exposed"] = min(totals["load"], totals["other"])
    return {name: total / (len(rounds) * num_iterations) for name, total in totals.items()}


def own_stage_times(
    rounds_by_rank: Sequence[Rounds],
    num_iterations: int,
    watched_by_rank: Sequence[Sequence[Watched]] = (),
) -> dict[str, tuple[float, ...]] | None:
    """Return seconds per iteration of each stage on each rank, without waiting for a later rank.

    A rank's time counts up to what the group's progress took: from when the last rank entered the
    stage to when the last rank left it. Where a rank is late within the very stage that the others
    wait in, only watched iterations tell. None where spans were not kept, or stages differ.
    """
    totals: dict[str, list[float]] = {}
    num_rounds = 0
    for ranks in zip(*rounds_by_rank, strict=True):
        if len({tuple(name for name, _, _ in times.spans) for times in ranks}) > 1:
            return None
        num_rounds += bool(ranks[0].spans)
        for together in zip(*(times.spans for times in ranks), strict=True):
            progress_s = max(end for _, _, end in together) - max(start for _, start, _ in together)
            of_stage = totals.setdefault(together[0][0], [0.0] * len(ranks))
            for rank, (_, start, end) in enumerate(together):
                of_stage[rank] += min(end - start, progress_s)
    own_s = {}
    for name, of_stage in totals.items():
        times_s = [max(0.0, seconds) / (num_rounds * num_iterations) for seconds in of_stage]
        watched = zip(*watched_by_rank, strict=True)
        inside = [[one.get(name, (0.0, 0.0, 0)) for one in ranks] for ranks in watched]
        own_s[name] = _without_waiting_inside(times_s, inside)
    return own_s or None


def _without_waiting_inside(
    times_s: Sequence[float], watched: Sequence[Sequence[tuple[float, float, int]]]
) -> tuple[float, ...]:
    """Each rank's time in a stage, without the waiting that is hidden in it."""
    longest_s, found = max(times_s), []
    # Other processes can only make a rank's own work longer: the shortest of each is its own.
    of_ranks = (zip(*of_rank, strict=True) for of_rank in zip(*watched, strict=True))
    least = [(min(own_s), min(inside_s), min(num)) for own_s, inside_s, num in of_ranks]
    for rank, time_s in enumerate(times_s):
        waited_s = _waited_s(least, rank, longest_s) if least else 0.0
        waits = all(_waited_s(ranks, rank, longest_s) for ranks in watched)
        waited_s = waited_s if waits and waited_s <= _MOST_WAITED * longest_s else 0.0
        found.append(max(0.0, time_s - max(0.0, waited_s - (longest_s - time_s))))
    return tuple(found)


def _waited_s(ranks: Sequence[tuple[float, float, int]], rank: int, longest_s: float) -> float:
    """The seconds of a watched stage that a rank waited for one that clearly had more to do."""
    own_s, communication_s, num_operators = ranks[rank]
    last_s, exchange_s, most_operators = max(ranks)
    if (lead_s := last_s - own_s) <= (_CLEARLY - 1.0) * own_s or not communication_s:
        return 0.0
    # To watch an operator takes time, too, so a rank with fewer leads by more than it does alone.
    watching_s = max(0.0, last_s + exchange_s - longest_s)
    fewer = max(0, most_operators - num_operators) / max(1, most_operators)
    return min(lead_s - watching_s * fewer, communication_s)


def step_percentiles(rounds_by_rank: Sequence[Rounds]) -> cell.StepPercentiles | None:
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
    return cell.StepPercentiles(p50=p50, p95=p95, p99=p99)


def report(workload: str, recipe: Recipe, checked: RunChecked) -> EquivalenceReport:
    """Return the report of a recipe whose run was checked."""
    return EquivalenceReport(workload=workload, recipe=recipe.as_dict(), **checked._asdict())


def not_exercised(workload: str, recipe: Recipe, reason: str) -> EquivalenceReport:
    """Return the report of a recipe that could not be exercised."""
    check = "T0" if recipe.plan.world_size > 1 else equivalence.semantic_check(recipe.precision)
    row = equivalence.EquivalenceRow.of(recipe, check, "not exercised", reason)
    return report(workload, recipe, RunChecked(rows=(row,), inapplicable={}))


def without_loader(recipe: Recipe) -> Recipe:
    """The recipe with the default loader, as no loader changes a number."""
    return dataclasses.replace(recipe, **{name: getattr(Recipe(), name) for name in _OF_LOADER})


def name_of(workload: str | Workload) -> str:
    """Return the name under which a workload's cells are recorded."""
    return workload.name if isinstance(workload, Workload) else workload


def check_is_recipe(recipe: object) -> None:
    """Raise a RecipeError unless it is a Recipe."""
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"recipe is {recipe!r}; use perfsuite.Recipe(parallel='ddp:2', ...)")
