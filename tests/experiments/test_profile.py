"""From the ranks to one profile: times of the slowest rank, and what is summed or averaged."""

from __future__ import annotations

import pytest

from perfsuite.experiments.profile import combine_profiles
from perfsuite.ranks.messages import ProfileTaken, RankEpoch, RunProfile
from perfsuite.records.profile import NonFinite, Profile, ProfilerOutput, ProfileStages, RankUsage
from perfsuite.records.recipe import Recipe

JOB = RunProfile(workload=b"", recipe=Recipe(parallel="ddp:2"), num_epochs=1)
OUTPUT = ProfilerOutput(
    operators=(), num_steps=3, communication=None, trace=b"", operator_table="", memory_summary=""
)
EPOCH = RankEpoch(
    duration_s=10.0,
    stages_s={"load": 4.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.25, "evaluation": 2.5},
    losses=(3.0, 1.0),
    first_bad_gradient=None,
    num_right=(1, 2, 0),
    num_there=(2, 2, 0),
    metric_sums={},
    num_scored=0,
)


def rank(number: int, *epochs: RankEpoch) -> ProfileTaken:
    return ProfileTaken(
        epochs=epochs,
        evaluated_split="test",
        usage=RankUsage(rank=number, device="cpu", samples=()),
        output=OUTPUT if number == 0 else None,
        missing={},
    )


def combine(*by_rank: list[RankEpoch]) -> Profile:
    ranks = [rank(number, *epochs) for number, epochs in enumerate(by_rank)]
    return combine_profiles(JOB, "tiny", "cpu", ranks).profile


def test_the_optimizer_and_all_that_no_stage_holds_is_other() -> None:
    profile = combine([EPOCH])

    assert profile.wall_s == 10.0
    assert profile.stages_s == ProfileStages(
        load=4.0, forward=1.0, loss_backward=2.0, evaluation=2.5, other=0.5
    )


def test_all_times_are_the_slowest_ranks() -> None:
    quick = EPOCH._replace(duration_s=9.9, stages_s={"load": 9.0})

    profile = combine([quick, quick], [EPOCH, EPOCH])

    assert profile.wall_s == 20.0
    assert profile.stages_s.load == 8.0
    assert [epoch.duration_s for epoch in profile.epochs] == [10.0, 10.0]


@pytest.mark.parametrize("seconds", [1 / 3, 2 / 3, 0.1234565])
def test_stages_add_up(seconds: float) -> None:
    odd = EPOCH._replace(duration_s=4 * seconds, stages_s={"load": seconds, "forward": seconds})

    profile = combine([odd, odd, odd])

    total_s = sum(part_s for _, part_s in profile.stages_s.as_rows())
    assert total_s == pytest.approx(profile.wall_s)
    assert profile.stages_s.evaluation is None


def test_losses_are_means_over_the_ranks_that_hold_one() -> None:
    profile = combine(
        [EPOCH._replace(losses=(3.0, 1.0))],
        [EPOCH._replace(losses=(1.0, 1.0))],
        [EPOCH._replace(losses=())],
    )

    assert profile.losses == (2.0, 1.0)
    assert profile.epochs[0].loss == 1.5


def test_right_answers_are_summed_over_the_ranks_that_counted() -> None:
    silent = EPOCH._replace(num_right=None, num_there=None)

    profile = combine([EPOCH], [EPOCH._replace(num_right=(0, 1, 0), num_there=(2, 4, 0))], [silent])

    assert profile.accuracy == 4 / 10
    # No rank saw the third class.
    assert profile.accuracy_per_class == {"0": 1 / 4, "1": 3 / 6}


def test_a_metric_is_the_mean_over_the_samples_of_all_ranks() -> None:
    few = EPOCH._replace(metric_sums={"f1": 1.0, "error": 4.0}, num_scored=2)
    many = EPOCH._replace(metric_sums={"f1": 4.0, "error": float("inf")}, num_scored=8)
    silent = EPOCH

    profile = combine([few], [many], [silent])

    assert profile.metrics == profile.epochs[0].metrics == {"f1": 0.5, "error": None}


def test_a_reason_that_one_rank_knows_is_the_profiles() -> None:
    ranks = [rank(0, EPOCH), rank(1, EPOCH)._replace(missing={"accuracy": "no scores"})]

    profile = combine_profiles(JOB, "tiny", "cpu", ranks).profile

    assert profile.missing == {"accuracy": "no scores"}


def test_the_first_step_that_is_not_finite_is_the_earliest_of_any_rank() -> None:
    nan = float("nan")
    late = EPOCH._replace(losses=(1.0, nan), first_bad_gradient=1)
    later = EPOCH._replace(first_bad_gradient=2)

    profile = combine([EPOCH, later], [EPOCH, late])

    assert profile.non_finite == (
        NonFinite(what="loss", epoch=2, step=2),
        NonFinite(what="gradient", epoch=2, step=1),
    )
    assert profile.losses == (3.0, 1.0, 2.0, None)
    assert (profile.epochs[0].loss, profile.epochs[1].loss) == (2.0, None)
