"""Combines what each rank saw of a training into one profile. Runs in the controller."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from perfsuite.ranks.messages import ProfileTaken, RankEpoch, RunProfile
from perfsuite.records.profile import Epoch, NonFinite, Profile, ProfiledRun, ProfileStages


def combine_profiles(
    job: RunProfile, name: str, device: str, ranks: Sequence[ProfileTaken]
) -> ProfiledRun:
    """Return one profile from what all ranks saw, and the profiler's output.

    Times are the slowest rank's alone, so that its stages add up to its wall time: the largest of
    each stage over ranks would add up to more than any rank spent. `torch.profiler` ran on rank 0.
    """
    slowest = max(ranks, key=lambda rank: sum(epoch.duration_s for epoch in rank.epochs))
    output = ranks[0].output
    assert output is not None, "rank 0 always has it"
    by_epoch = list(zip(*(rank.epochs for rank in ranks), strict=True))
    held = [[rank.losses for rank in ranks if rank.losses] for ranks in by_epoch]
    losses = [[sum(of) / len(of) for of in zip(*told, strict=True)] for told in held]
    of_classes = enumerate(_counts(by_epoch[-1]))
    by_class = {str(label): right / there for label, (right, there) in of_classes if there}
    epochs = tuple(
        Epoch(
            loss=_finite(sum(of_epoch) / len(of_epoch)) if of_epoch else None,
            duration_s=taken.duration_s,
            accuracy=_accuracy(epoch),
            stages_s=_stages(taken),
            metrics=_metrics(epoch),
        )
        for taken, of_epoch, epoch in zip(slowest.epochs, losses, by_epoch, strict=True)
    )
    profile = Profile(
        workload=name,
        recipe=job.recipe.as_dict(),
        device=device,
        world_size=len(ranks),
        wall_s=sum(epoch.duration_s for epoch in epochs),
        stages_s=_sum_stages([epoch.stages_s for epoch in epochs]),
        evaluated_split=slowest.evaluated_split,
        accuracy=epochs[-1].accuracy,
        accuracy_per_class=by_class or None,
        epochs=epochs,
        losses=tuple(_finite(loss) for steps in losses for loss in steps),
        non_finite=tuple(_first_non_finite(by_epoch)),
        operators=output.operators,
        num_profiled_steps=output.num_steps,
        communication=output.communication,
        usage=tuple(rank.usage for rank in ranks),
        # A reason that only one rank knows, such as a pipeline's last, holds for the profile.
        missing={name: why for rank in reversed(ranks) for name, why in rank.missing.items()},
        metrics=epochs[-1].metrics,
    )
    return ProfiledRun(profile=profile, profiler=output)


def _stages(taken: RankEpoch) -> ProfileStages:
    spent = taken.stages_s
    load, forward, backward = (spent.get(name, 0.0) for name in ("load", "forward", "backward"))
    evaluation = spent.get("evaluation")
    rest = max(0.0, taken.duration_s - load - forward - backward - (evaluation or 0.0))
    return ProfileStages(
        load=load, forward=forward, loss_backward=backward, evaluation=evaluation, other=rest
    )


def _sum_stages(stages: Sequence[ProfileStages]) -> ProfileStages:
    sums = {}
    for name in ProfileStages.__struct_fields__:
        spent = [seconds for one in stages if (seconds := getattr(one, name)) is not None]
        sums[name] = sum(spent) if spent else None
    return msgspec.convert(sums, ProfileStages)


def _first_non_finite(by_epoch: Sequence[Sequence[RankEpoch]]) -> Iterator[NonFinite]:
    kinds: tuple[Literal["loss", "gradient"], ...] = ("loss", "gradient")
    for what in kinds:
        for epoch, ranks in enumerate(by_epoch, start=1):
            steps = [rank.first_bad_gradient for rank in ranks]
            if what == "loss":
                losses = (pair for rank in ranks for pair in enumerate(rank.losses, 1))
                steps = [step for step, loss in losses if not math.isfinite(loss)]
            if found := [step for step in steps if step is not None]:
                yield NonFinite(what=what, epoch=epoch, step=min(found))
                break


def _counts(ranks: Sequence[RankEpoch]) -> list[tuple[int, int]]:
    """Return right answers and samples of each class, over all ranks that counted."""
    right = zip(*(rank.num_right for rank in ranks if rank.num_right is not None), strict=True)
    there = zip(*(rank.num_there for rank in ranks if rank.num_there is not None), strict=True)
    return list(zip(map(sum, right), map(sum, there), strict=True))


def _accuracy(ranks: Sequence[RankEpoch]) -> float | None:
    counts = _counts(ranks)
    num_samples = sum(there for _, there in counts)
    return sum(right for right, _ in counts) / num_samples if num_samples else None


def _metrics(ranks: Sequence[RankEpoch]) -> dict[str, float | None]:
    num_scored = sum(rank.num_scored for rank in ranks)
    sums = [rank.metric_sums for rank in ranks]
    names = dict.fromkeys(name for one in sums for name in one)
    return {name: _finite(sum(one.get(name, 0.0) for one in sums) / num_scored) for name in names}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
