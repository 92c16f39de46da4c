"""Two or three ranks whose step is planned: who is slow, where, and who only waits."""

from __future__ import annotations

import pytest

from perfsuite.experiments.results import own_stage_times, step_percentiles
from perfsuite.ranks.messages import RoundTimes, Span, Watched
from perfsuite.records.cell import StepPercentiles

STAGES = {"load": 0.004, "forward": 0.010, "backward": 0.020, "optimizer": 0.002}
DELAY_S = 0.050
NUM_STEPS = 3


def train(waits_in: str, *delays: tuple[str, float] | None) -> list[list[RoundTimes]]:
    """Return a round of ranks that reduce at the end of one stage; each may have a delay."""
    spans: list[list[Span]] = [[] for _ in delays]
    now_s = [0.0] * len(delays)
    for _ in range(NUM_STEPS):
        for name, seconds in STAGES.items():
            ends_s = [
                now + seconds + (delay[1] if delay is not None and delay[0] == name else 0.0)
                for now, delay in zip(now_s, delays, strict=True)
            ]
            if name == waits_in:
                ends_s = [max(ends_s)] * len(ends_s)
            for rank, end_s in enumerate(ends_s):
                spans[rank].append((name, now_s[rank], end_s))
            now_s = ends_s
    return [
        [RoundTimes(duration_s=now, stages_s={}, spans=tuple(mine))]
        for now, mine in zip(now_s, spans, strict=True)
    ]


# A rank that is late in the very stage in which the others wait makes it as long for all.
@pytest.mark.parametrize(
    ("stage", "waits_in"),
    [
        (stage, waits_in)
        for waits_in in ("forward", "backward", "optimizer")
        for stage in STAGES
        if stage != waits_in
    ],
)
def test_a_delay_is_its_ranks_and_no_waiting_is(stage: str, waits_in: str) -> None:
    own_s = own_stage_times(train(waits_in, None, (stage, DELAY_S)), NUM_STEPS)

    expected = {name: (seconds, seconds) for name, seconds in STAGES.items()}
    expected[stage] = (STAGES[stage], STAGES[stage] + DELAY_S)
    assert own_s is not None
    assert own_s == {name: pytest.approx(times) for name, times in expected.items()}


def test_two_ranks_with_delays_of_their_own_both_have_them() -> None:
    delays = (("load", DELAY_S), None, ("forward", DELAY_S / 2))
    own_s = own_stage_times(train("backward", *delays), NUM_STEPS)

    assert own_s is not None
    assert own_s["load"] == pytest.approx((0.054, 0.004, 0.004))
    # Rank 2 is on its way while rank 0 loads: it holds nobody up before rank 0 has come.
    assert own_s["forward"] == pytest.approx((0.010, 0.010, 0.010))
    assert own_s["backward"] == pytest.approx((0.020, 0.020, 0.020))


# Watching slows down each operator: what else makes a rank late takes as long as it does alone.
@pytest.mark.parametrize(
    ("us_of_operator", "num_of_late"),
    [
        pytest.param(0, 100, id="watching takes no time"),
        pytest.param(100, 100, id="as many operators"),
        pytest.param(200, 350, id="more operators"),
    ],
)
def test_a_rank_that_is_late_where_the_others_wait_is_found_by_watching(
    us_of_operator: int, num_of_late: int
) -> None:
    rounds = train("backward", None, ("backward", DELAY_S), None)
    early_s, late_s = (1e-6 * us_of_operator * num for num in (100, num_of_late))
    early = {
        "backward": (0.020 + early_s, 0.050 + late_s - early_s, 100),
        "forward": (0.015, 0.0, 50),
    }
    late = {"backward": (0.070 + late_s, 0.0, num_of_late), "forward": (0.016, 0.0, 50)}

    blind = own_stage_times(rounds, NUM_STEPS)
    own_s = own_stage_times(rounds, NUM_STEPS, [[early] * 2, [late] * 2, [early] * 2])

    assert blind is not None
    assert own_s is not None
    assert blind["backward"] == pytest.approx((0.070, 0.070, 0.070))
    assert own_s["backward"] == pytest.approx((0.020, 0.070, 0.020))
    assert own_s["forward"] == blind["forward"] == pytest.approx((0.010, 0.010, 0.010))


def test_no_rank_waits_for_longer_than_the_stage_takes() -> None:
    rounds = train("backward", None, ("backward", DELAY_S))
    watched = [[{"backward": (0.020, 0.200, 100)}], [{"backward": (0.160, 0.0, 100)}]]

    assert own_stage_times(rounds, NUM_STEPS, watched) == own_stage_times(rounds, NUM_STEPS)


def test_what_other_processes_took_in_one_watched_step_is_no_ranks_own() -> None:
    rounds = train("backward", None, ("backward", DELAY_S))
    early = [{"backward": (own_s, 0.060, 100)} for own_s in (0.028, 0.020)]
    late = [{"backward": (own_s, 0.0, 100)} for own_s in (0.070, 0.076)]

    own_s = own_stage_times(rounds, NUM_STEPS, [early, late])

    assert own_s is not None
    assert own_s["backward"] == pytest.approx((0.020, 0.070))


def test_a_rank_that_waits_in_one_of_two_watched_steps_keeps_its_time() -> None:
    rounds = train("backward", None, ("backward", DELAY_S))
    early = [{"backward": (own_s, 0.060, 100)} for own_s in (0.020, 0.070)]
    late = [{"backward": (0.070, 0.0, 100)}] * 2

    assert own_stage_times(rounds, NUM_STEPS, [early, late]) == own_stage_times(rounds, NUM_STEPS)


@pytest.mark.parametrize(
    "early",
    [
        pytest.param({"backward": (0.025, 0.0, 100)}, id="nothing is waited for"),
        pytest.param({}, id="the stage was not entered"),
        pytest.param({"backward": (0.040, 0.051, 100)}, id="no rank clearly has more to do"),
    ],
)
def test_watched_ranks_that_prove_no_waiting_keep_their_time(early: Watched) -> None:
    rounds = train("backward", None, ("backward", DELAY_S))

    own_s = own_stage_times(rounds, NUM_STEPS, [[early], [{"backward": (0.075, 0.001, 100)}]])

    assert own_s == own_stage_times(rounds, NUM_STEPS)


def test_ranks_that_run_different_stages_are_not_compared() -> None:
    first, second = (
        RoundTimes(duration_s=1.0, stages_s={}, spans=((name, 0.0, 1.0),))
        for name in ("forward", "backward")
    )

    assert own_stage_times([[first], [second]], 1) is None
    assert own_stage_times([[RoundTimes(duration_s=1.0, stages_s={})]], 1) is None


def test_percentiles_are_times_that_the_slowest_rank_of_a_step_took() -> None:
    fast = RoundTimes(duration_s=1.0, stages_s={}, steps_s=tuple(range(1, 101)))
    slow = RoundTimes(duration_s=1.0, stages_s={}, steps_s=(0.5,) * 99 + (500,))

    assert step_percentiles([[fast], [slow]]) == StepPercentiles(p50=50, p95=95, p99=99)
    assert step_percentiles([[fast, fast], [slow, slow]]) == StepPercentiles(p50=50, p95=95, p99=99)
    assert step_percentiles([[RoundTimes(duration_s=1.0, stages_s={})]]) is None
