"""From the replies of the ranks to what is kept: outcomes of cells, reports of checks."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from perfsuite.errors import RecipeError
from perfsuite.experiments.slow_ranks import own_stage_times, slowest_ranks, step_percentiles
from perfsuite.ranks.messages import CellMeasured, RoundTimes, RunCell, RunChecked
from perfsuite.records.cell import (
    CellRecord,
    Counts,
    Memory,
    Outcome,
    StageTimes,
    TensorDigest,
)
from perfsuite.records.equivalence import (
    EquivalenceReport,
    EquivalenceRow,
    Numerics,
    semantic_check,
)
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.system.gpus import peak_flops_per_s

_OF_LOADER = (
    *("loader", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor"),
    "non_blocking",
)


def combine(
    job: RunCell, name: str, device: str, ranks: Sequence[CellMeasured], numerics: Numerics | None
) -> Outcome:
    """Return one outcome from what all ranks measured."""
    first = ranks[0]
    rounds_by_rank = [rank.rounds for rank in ranks]
    step_times_s = slowest_rank_times(rounds_by_rank, first.num_iterations)
    step_s = statistics.median(step_times_s)
    samples = first.global_batch_size
    tokens = None if job.user_code is None else job.user_code.tokens_per_step
    why_mixed = _why_mixed(ranks)
    told = [rank.losses for rank in ranks if rank.losses is not None]
    # A user's own code may tell fewer on one rank than on another.
    losses = zip(*told, strict=job.user_code is None)
    precision = None if job.recipe is None else job.recipe.precision
    speeds, missing = _speeds(precision, device, ranks, step_s)
    staged = [rank.stage_rounds or rank.rounds for rank in ranks]
    own_s = own_stage_times(staged, first.num_iterations, [rank.watched_s for rank in ranks])
    record = CellRecord(
        workload=name,
        recipe=None if job.recipe is None else job.recipe.as_dict(),
        device=device,
        world_size=len(ranks),
        exercised=True,
        fingerprint=None if why_mixed else first.environment.fingerprint,
        numerics=numerics,
        stages_s=combine_stages(staged, first.num_iterations, overlaps_loading=device != "cpu"),
        counts=_busiest([rank.counts for rank in ranks]),
        memory=_memory(ranks),
        samples_per_s=None if samples is None else samples / step_s,
        tokens_per_s=None if tokens is None else tokens / step_s,
        losses=tuple(sum(of_step) / len(of_step) for of_step in losses),
        verdict=None,
        operators=first.operators,
        weights=add_digests([rank.weights for rank in ranks]),
        rank_stages_s=own_s,
        slow_ranks=None if own_s is None else slowest_ranks(own_s),
        step_s=step_percentiles(rounds_by_rank),
        tflops=speeds["tflops"],
        mfu=speeds["mfu"],
        hfu=speeds["hfu"],
    )
    return Outcome(
        step_times_s=tuple(step_times_s),
        num_iterations=first.num_iterations,
        record=record,
        missing=missing | _why_no_rank(own_s, len(ranks)) | first.missing | why_mixed,
    )


def _why_mixed(ranks: Sequence[CellMeasured]) -> dict[str, str]:
    """Why the cell belongs to no environment; empty where its ranks found the same one."""
    ours = ranks[0].environment
    for rank, its in enumerate(one.environment for one in ranks):
        if its != ours:
            return {"fingerprint": f"rank 0 and rank {rank} differ: {ours.difference(its)}"}
    return {}


def _why_no_rank(own_s: object, num_ranks: int) -> dict[str, str]:
    if own_s is not None or num_ranks == 1:
        return {}
    return {"slow_ranks": "the ranks ran different stages"}


def _speeds(
    precision: str | None, device: str, ranks: Sequence[CellMeasured], step_s: float
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Return TFLOP/s of a device, MFU and HFU, as far as they are known, and why one is missing."""
    counts = [rank.counts for rank in ranks]
    model = [one.model_flops for one in counts if one.model_flops is not None]
    with_recomputation = [one.flops for one in counts if one.flops is not None]
    speeds: dict[str, float | None] = dict.fromkeys(("tflops", "mfu", "hfu"))
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


def _busiest(counts: Sequence[Counts]) -> Counts:
    """Return, count by count, the largest over ranks; None where any rank has none."""

    def largest(name: str) -> int | None:
        values = [getattr(one, name) for one in counts]
        return None if None in values else max(values)

    return Counts(**{name: largest(name) for name in Counts.__struct_fields__})


def add_digests(
    ranks: Sequence[tuple[tuple[TensorDigest, ...], ...]],
) -> tuple[tuple[TensorDigest, ...], ...] | None:
    """Return the digests of all ranks' weights, as if those of one place were one tensor.

    >>> add_digests([((TensorDigest(2, 3.0, 5.0),),), ((TensorDigest(1, 1.0, 1.0),),)])
    ((TensorDigest(num_elements=3, total=4.0, squares=6.0),),)
    """
    steps = [
        tuple(
            TensorDigest(
                sum(part.num_elements for part in parts),
                sum(part.total for part in parts),
                sum(part.squares for part in parts),
            )
            for parts in itertools.zip_longest(*step, fillvalue=TensorDigest(0, 0.0, 0.0))
        )
        for step in zip(*ranks, strict=False)
    ]
    return tuple(steps) if any(steps) else None


def _memory(ranks: Sequence[CellMeasured]) -> Memory | None:
    peaks = [rank.peak for rank in ranks if rank.peak is not None]
    if len(peaks) < len(ranks):
        return None
    per_rank = tuple(peak.peak_bytes for peak in peaks)
    reserved = [peak.reserved_bytes for peak in peaks if peak.reserved_bytes is not None]
    return Memory(
        metric=peaks[0].metric,
        peak_bytes=max(per_rank),
        per_rank=per_rank,
        reserved_bytes=max(reserved, default=None),
    )


def slowest_rank_times(
    rounds_by_rank: Sequence[Sequence[RoundTimes]], num_iterations: int
) -> list[float]:
    """Return seconds per iteration of each round: the slowest rank's from the common start.

    Raises a ValueError where the ranks have different numbers of rounds.

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
    rounds_by_rank: Sequence[Sequence[RoundTimes]],
    num_iterations: int,
    *,
    overlaps_loading: bool = False,
) -> StageTimes:
    """Return seconds per iteration of each stage: the maximum over ranks of the rank's mean.

    The stages may come from different ranks, so they need not add up to the step time. `other` is
    a rank's duration less its stages, again the maximum over ranks. On an accelerator it is the
    time in which the device did nothing of the kind: copies, and the wait for a batch. The host
    loads while the device computes, so that "load" counts in full and is no part of the duration.

    >>> rounds = [RoundTimes(duration_s=1.0, stages_s={"load": 0.25, "forward": 0.5})]
    >>> times = combine_stages([rounds], num_iterations=1)
    >>> times.load, times.forward, times.backward, times.other
    (0.25, 0.5, None, 0.25)
    """
    means = [_mean_stages(rounds, num_iterations, overlaps_loading) for rounds in rounds_by_rank]
    names = ("load", "forward", "backward", "optimizer", "evaluation", "other")
    return StageTimes(
        **{name: max((one[name] for one in means if name in one), default=None) for name in names}
    )


def _mean_stages(
    rounds: Sequence[RoundTimes], num_iterations: int, overlaps_loading: bool
) -> dict[str, float]:
    totals: dict[str, float] = {}
    for times in rounds:
        for name, seconds in times.stages_s.items():
            totals[name] = totals.get(name, 0.0) + seconds
    within_s = sum(totals.values()) - (totals.get("load", 0.0) if overlaps_loading else 0.0)
    totals["other"] = max(0.0, sum(times.duration_s for times in rounds) - within_s)
    return {name: total / (len(rounds) * num_iterations) for name, total in totals.items()}


def report(workload: str, recipe: Recipe, checked: RunChecked) -> EquivalenceReport:
    """Return the report of a recipe whose run was checked."""
    return EquivalenceReport(
        workload=workload,
        recipe=recipe.as_dict(),
        rows=checked.rows,
        inapplicable=checked.inapplicable,
    )


def not_exercised(workload: str, recipe: Recipe, reason: str) -> EquivalenceReport:
    """Return the report of a recipe that could not be exercised."""
    check = "T0" if recipe.plan.world_size > 1 else semantic_check(recipe.precision)
    row = EquivalenceRow.of(recipe, check, "not exercised", reason)
    return report(workload, recipe, RunChecked(rows=(row,), inapplicable={}))


def without_loader(recipe: Recipe) -> Recipe:
    """The recipe with the default loader, as no loader changes a number."""
    defaults = Recipe()
    return dataclasses.replace(recipe, **{name: getattr(defaults, name) for name in _OF_LOADER})


def name_of(workload: str | Workload) -> str:
    """Return the name under which a workload's cells are recorded."""
    return workload.name if isinstance(workload, Workload) else workload


def check_is_recipe(recipe: object) -> None:
    """Raise a RecipeError for what is none."""
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"recipe is {recipe!r}; use perfsuite.Recipe(parallel='ddp:2', ...)")
