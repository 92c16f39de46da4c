"""From what each rank measured of a cell to one outcome. Must not know how ranks are run."""

from __future__ import annotations

from collections.abc import Sequence

from perfsuite import stats
from perfsuite.measure.combine import combine_stages, slowest_rank_times
from perfsuite.ranks.wire import CellMeasured, RunCell
from perfsuite.records import CellRecord, Counts, Memory, Numerics, Outcome


def combine(
    job: RunCell,
    name: str,
    device: str,
    ranks: Sequence[CellMeasured],
    numerics: Numerics | None,
) -> Outcome:
    """Return one outcome from what all ranks measured."""
    first = ranks[0]
    rounds_by_rank = [rank.rounds for rank in ranks]
    step_times_s = slowest_rank_times(rounds_by_rank, first.num_iterations)
    batch_size = first.global_batch_size
    record = CellRecord(
        workload=name,
        recipe=job.recipe.as_dict(),
        device=device,
        world_size=len(ranks),
        exercised=True,
        fingerprint=first.environment.fingerprint,
        numerics=numerics,
        stages_s=combine_stages(rounds_by_rank, first.num_iterations),
        counts=_busiest([rank.counts for rank in ranks]),
        memory=_memory(ranks),
        samples_per_s=None if batch_size is None else batch_size / stats.median(step_times_s),
        losses=_mean_losses([rank.losses for rank in ranks if rank.losses is not None]),
        verdict=None,
        operators=first.operators,
    )
    return Outcome(
        step_times_s=tuple(step_times_s),
        num_iterations=first.num_iterations,
        record=record,
        missing=first.missing,
    )


def _busiest(counts: Sequence[Counts]) -> Counts:
    """Return, count by count, the largest over ranks; None where any rank has none."""

    def largest(name: str) -> int | None:
        values = [getattr(one, name) for one in counts]
        return None if None in values else max(values)

    return Counts(**{name: largest(name) for name in Counts.__struct_fields__})


def _memory(ranks: Sequence[CellMeasured]) -> Memory | None:
    peaks = [rank.peak for rank in ranks if rank.peak is not None]
    if len(peaks) < len(ranks):
        return None
    per_rank = tuple(peak.peak_bytes for peak in peaks)
    return Memory(metric=peaks[0].metric, peak_bytes=max(per_rank), per_rank=per_rank)


def _mean_losses(by_rank: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(losses) / len(losses) for losses in zip(*by_rank, strict=True))
