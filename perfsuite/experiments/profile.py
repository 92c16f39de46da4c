"""From what each rank saw of a training to one profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from perfsuite.ranks.messages import EpochProfiled, ProfileTaken, RunProfile
from perfsuite.records.profile import Epoch, NonFinite, Profile, ProfiledRun, ProfileStages

# The host's clock is not trusted beyond these, and every report shows the same digits.
_DECIMALS = 6


def combine_profiles(
    job: RunProfile, name: str, device: str, ranks: Sequence[ProfileTaken]
) -> ProfiledRun:
    """Return one profile from what all ranks saw.

    Times are the slowest rank's alone, so that its stages add up to its wall time: the largest of
    each stage over ranks would be more than any rank spent. Losses are means over the ranks that
    hold one, right answers are summed, and `torch.profiler` ran on rank 0.
    """
    slowest = max(ranks, key=lambda rank: rank.wall_s)
    output = ranks[0].output
    assert output is not None, "rank 0 always has it"
    by_epoch = list(zip(*(rank.epochs for rank in ranks), strict=True))
    losses = [_mean_losses(epochs) for epochs in by_epoch]
    epochs = tuple(map(_epoch, slowest.epochs, losses, by_epoch))
    profile = Profile(
        workload=name,
        recipe=job.recipe.as_dict(),
        device=device,
        world_size=len(ranks),
        wall_s=_total(epoch.duration_s for epoch in epochs),
        stages_s=_sum_stages([epoch.stages_s for epoch in epochs]),
        evaluated_split=slowest.evaluated_split,
        accuracy=epochs[-1].accuracy,
        accuracy_per_class=_accuracy_per_class(by_epoch[-1]),
        epochs=epochs,
        losses=tuple(_finite(loss) for steps in losses for loss in steps),
        non_finite=tuple(_first_non_finite(by_epoch)),
        operators=output.operators,
        num_profiled_steps=output.num_steps,
        communication=output.communication,
        usage=tuple(rank.usage for rank in ranks),
        # Only the rank that holds a pipeline's outputs may know a reason.
        missing={name: why for rank in reversed(ranks) for name, why in rank.missing.items()},
        metrics=epochs[-1].metrics,
    )
    return ProfiledRun(
        profile=profile,
        trace=output.trace,
        operator_table=output.operator_table,
        memory_summary=output.memory_summary,
    )


def _epoch(taken: EpochProfiled, losses: Sequence[float], ranks: Sequence[EpochProfiled]) -> Epoch:
    return Epoch(
        loss=_finite(sum(losses) / len(losses)) if losses else None,
        duration_s=round(taken.duration_s, _DECIMALS),
        accuracy=_accuracy(ranks),
        stages_s=_stages(taken),
        metrics=_metrics(ranks),
    )


def _stages(taken: EpochProfiled) -> ProfileStages:
    """The five stages of one epoch, rounded so that they still add up to its duration."""
    spent = {name: round(seconds, _DECIMALS) for name, seconds in taken.stages_s.items()}
    load, forward, backward = (spent.get(name, 0.0) for name in ("load", "forward", "backward"))
    evaluation = spent.get("evaluation")
    rest_s = round(taken.duration_s, _DECIMALS) - load - forward - backward - (evaluation or 0.0)
    return ProfileStages(
        load=load,
        forward=forward,
        loss_backward=backward,
        evaluation=evaluation,
        other=max(0.0, round(rest_s, _DECIMALS)),
    )


def _sum_stages(stages: Sequence[ProfileStages]) -> ProfileStages:
    evaluations = [one.evaluation for one in stages if one.evaluation is not None]
    return ProfileStages(
        load=_total(one.load for one in stages),
        forward=_total(one.forward for one in stages),
        loss_backward=_total(one.loss_backward for one in stages),
        evaluation=_total(evaluations) if evaluations else None,
        other=_total(one.other for one in stages),
    )


def _total(seconds: Iterable[float]) -> float:
    return round(sum(seconds), _DECIMALS)


def _mean_losses(ranks: Sequence[EpochProfiled]) -> list[float]:
    """The mean loss of each step over the ranks that hold one."""
    held = [rank.losses for rank in ranks if rank.losses]
    return [sum(losses) / len(losses) for losses in zip(*held, strict=True)]


def _first_non_finite(by_epoch: Sequence[Sequence[EpochProfiled]]) -> Iterable[NonFinite]:
    """The first bad loss and the first bad gradient, on any rank."""
    for what in ("loss", "gradient"):
        for epoch, ranks in enumerate(by_epoch, start=1):
            found = [getattr(rank, f"first_bad_{what}") for rank in ranks]
            if steps := [step for step in found if step is not None]:
                yield NonFinite(what=what, epoch=epoch, step=min(steps))
                break


def _counts(ranks: Sequence[EpochProfiled]) -> tuple[list[int], list[int]]:
    """Right answers and samples by class, over all ranks that counted."""
    right = [rank.num_right for rank in ranks if rank.num_right is not None]
    there = [rank.num_there for rank in ranks if rank.num_there is not None]
    return list(map(sum, zip(*right, strict=True))), list(map(sum, zip(*there, strict=True)))


def _accuracy(ranks: Sequence[EpochProfiled]) -> float | None:
    right, there = _counts(ranks)
    return sum(right) / sum(there) if sum(there) else None


def _accuracy_per_class(ranks: Sequence[EpochProfiled]) -> dict[str, float] | None:
    right, there = _counts(ranks)
    if not sum(there):
        return None
    classes = enumerate(zip(right, there, strict=True))
    return {str(label): num / total for label, (num, total) in classes if total}


def _metrics(ranks: Sequence[EpochProfiled]) -> dict[str, float | None]:
    """Means over the samples of all ranks."""
    num_scored = sum(rank.num_scored for rank in ranks)
    totals: dict[str, float] = {}
    for rank in ranks:
        for name, total in rank.metric_sums.items():
            totals[name] = totals.get(name, 0.0) + total
    return {name: _finite(total / num_scored) for name, total in totals.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
