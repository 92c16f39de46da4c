"""Claims that are timed: what decides each, by hand, and what they run."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_cells import MadeUpSession, make_outcome

from perfsuite.errors import NotExercisedError, WorkloadError
from perfsuite.experiments.claims import parallelism, trainings
from perfsuite.experiments.claims.claim import ClaimFinding
from perfsuite.experiments.claims.loading import (
    find_images,
    try_augmentation,
    try_bound,
    try_workers,
)
from perfsuite.experiments.claims.parallelism import (
    mean_usage,
    try_attribution,
    try_modes,
    try_usage,
    weigh_usage,
)
from perfsuite.experiments.claims.trainings import (
    LearningCurve,
    try_first_epoch,
    try_stages,
    weigh_precisions,
)
from perfsuite.experiments.interleave import Bench
from perfsuite.records.capability import Hardware
from perfsuite.records.cell import StageTimes
from perfsuite.records.profile import ProfileStages
from perfsuite.records.recipe import Recipe
from perfsuite.system.usage import UsageSample

FAST, SLOW = (1.0, 1.5, 1.1), (2.0, 3.1, 2.2)
TWO_GPUS = Hardware(device="cuda", num_gpus=2)


def bench_of(
    answer: Any, hardware: Hardware | None = None, *, has_mnist: bool = False
) -> tuple[Bench, MadeUpSession]:
    """A bench on a machine that is made up, and the session that it measures with."""

    def answer_if_there(workload: str, recipe: Recipe, activity: str) -> Any:
        if "mnist" in workload and not has_mnist:
            session.measured.pop()
            raise WorkloadError("MNIST is not on disk")
        return answer(workload, recipe, activity)

    session = MadeUpSession(answer_if_there, hardware)
    bench = Bench(session=session, seed=1, say=lambda line: None)  # type: ignore[arg-type]
    return bench, session


def given(times_s: Any) -> Any:
    """A bench that has measured these times."""

    def measure(cells: Any) -> Any:
        return times_s

    session = SimpleNamespace(hardware=TWO_GPUS)
    known = {"session": session, "count": lambda workload, recipe: None}
    return SimpleNamespace(measure=measure, measure_times_s=measure, **known)


def scaled(*factors: float) -> list[tuple[float, ...]]:
    return [tuple(factor * time for time in FAST) for factor in factors]


def test_the_quoted_runs_images_are_taken_where_they_are_there() -> None:
    def answer(workload: str, recipe: Recipe, activity: str) -> Any:
        return make_outcome([0.001])

    assert find_images(bench_of(answer, has_mnist=True)[0]) == "lenet-mnist-affine"
    assert find_images(bench_of(answer)[0]) == "lenet-digits-affine"


# --- C1 ---


@pytest.mark.parametrize(
    ("times_s", "status"),
    [
        ({0: SLOW, 1: SLOW, 2: FAST, 4: FAST, 10: SLOW}, "holds"),
        ({0: SLOW, 1: SLOW, 2: FAST, 4: FAST, 10: FAST}, "does not hold"),
        ({0: FAST, 1: FAST, 2: FAST, 4: FAST, 10: SLOW}, "does not hold"),
        ({0: SLOW, 1: FAST, 2: FAST, 4: FAST, 10: SLOW}, "does not hold"),
    ],
    ids=["falls and rises", "never rises", "never falls", "one is as good as two"],
)
def test_c1_needs_a_fall_to_two_workers_and_a_rise(
    times_s: dict[int, tuple[float, ...]], status: str
) -> None:
    assert try_workers.experiment(given(times_s)).status == status


def test_c1_loads_alone_with_each_number_of_workers() -> None:
    bench, session = bench_of(lambda workload, recipe, activity: make_outcome([0.001]))

    finding = try_workers.experiment(bench)

    assert {recipe.num_workers for _, recipe, _ in session.measured} == {0, 1, 2, 4, 7, 10}
    assert {activity for _, _, activity in session.measured} == {"load"}
    assert finding.figures["optimum"] == 0


# --- C2 ---


def test_c2_holds_where_loading_in_the_process_takes_longer_than_the_update() -> None:
    def try_with(times_s: dict[int, list[tuple[float, float]]]) -> ClaimFinding:
        outcomes = {
            count: [
                make_outcome(
                    [1.0],
                    stages_s=StageTimes(
                        load=load_s,
                        forward=None,
                        backward=update_s,
                        optimizer=None,
                        evaluation=None,
                        other=0.0,
                    ),
                )
                for load_s, update_s in times
            ]
            for count, times in times_s.items()
        }
        return try_bound.experiment(given(outcomes))

    bound = try_with({0: [(6.4, 1.1), (6.0, 1.2)], 4: [(0.5, 1.2), (0.4, 1.1)]})
    free = try_with({0: [(0.5, 1.2), (0.4, 1.1)], 4: [(6.4, 1.1), (6.0, 1.2)]})
    noisy = try_with({0: [(2.0, 1.0), (0.9, 1.0)]})

    assert bound.status == "holds"
    assert free.status == "does not hold"
    assert noisy.status == "cannot be tested here"
    assert "; the noise is too large to say" in noisy.reason


def test_c2_counts_forward_backward_and_optimizer_as_the_update() -> None:
    bench, _ = bench_of(lambda workload, recipe, activity: make_outcome([0.007]))

    finding = try_bound.experiment(bench)

    assert finding.figures["0"]["load_s"] == pytest.approx(0.001)
    assert finding.figures["0"]["update_s"] == pytest.approx(0.006)
    assert finding.reason == (
        "on lenet-digits-affine without workers loading takes 0.17 times as long as the update "
        "(between 0.17 and 0.17); 0 workers 1.00 ms / 6.00 ms, 2 workers 1.00 ms / 6.00 ms, "
        "4 workers 1.00 ms / 6.00 ms"
    )


# --- C3 ---


@pytest.mark.parametrize(
    ("plain_s", "status"),
    [
        (scaled(0.5)[0], "holds"),
        (scaled(0.05)[0], "does not hold"),
        (scaled(0.95)[0], "does not hold"),
        ((0.2, 1.2, 0.6), "cannot be tested here"),
    ],
    ids=["half", "nearly all", "next to nothing", "noise"],
)
def test_c3_holds_where_the_share_is_nearer_to_a_half_than_to_anything_else(
    plain_s: tuple[float, ...], status: str
) -> None:
    bench = given({"affine": FAST, "plain": plain_s})

    assert try_augmentation.experiment(bench).status == status


def test_c3_compares_loading_with_the_augmentation_and_without() -> None:
    bench, session = bench_of(
        lambda workload, recipe, activity: make_outcome([0.002 if "affine" in workload else 0.001])
    )

    finding = try_augmentation.experiment(bench)

    assert finding.status == "holds"
    assert "2.00 ms with it, 1.00 ms without: the augmentation is 50.0 % " in finding.reason
    assert {(workload, activity) for workload, _, activity in session.measured} == {
        ("lenet-digits-affine", "load"),
        ("lenet-digits", "load"),
    }


# --- C4, C6 ---


@pytest.mark.parametrize("claim", [try_modes, try_usage])
@pytest.mark.parametrize("num_gpus", [0, 1])
def test_without_two_gpus_it_is_said_what_is_missing(claim: Any, num_gpus: int) -> None:
    hardware = Hardware(device="cuda" if num_gpus else "cpu", num_gpus=num_gpus)
    bench, session = bench_of(None, hardware)

    with pytest.raises(NotExercisedError) as refused:
        claim.experiment(bench)

    assert str(refused.value) == (
        f"it needs 2 GPUs or more (8 in the quoted runs), and {num_gpus} are here"
    )
    assert session.measured == []


def test_c4_compares_times_per_sample_over_all_gpus() -> None:
    def answer(workload: str, recipe: Recipe, activity: str) -> Any:
        step_s = {"single": 0.002, "dp:2": 0.004, "ddp:2": 0.002}[recipe.parallel]
        num_samples = 64 if recipe.parallel == "ddp:2" else 32
        return make_outcome([step_s], num_samples=num_samples)

    bench, session = bench_of(answer, TWO_GPUS)

    finding = try_modes.experiment(bench)

    assert finding.status == "holds"
    assert finding.figures["dp_per_single"]["value"] == pytest.approx(2.0)
    assert finding.figures["ddp_per_single"]["value"] == pytest.approx(0.5)
    assert len(session.measured) == 15


def test_c4_does_not_hold_where_dp_gains_or_ddp_loses() -> None:
    fast, slow = ([make_outcome([time_s]) for time_s in times] for times in (FAST, SLOW))

    dp_gains = try_modes.experiment(given({"single": slow, "dp": fast, "ddp": fast}))
    ddp_loses = try_modes.experiment(given({"single": fast, "dp": slow, "ddp": slow}))

    assert (dp_gains.status, ddp_loses.status) == ("does not hold", "does not hold")


def test_c6_is_not_exercised_where_no_gpu_tells_how_busy_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = [SimpleNamespace(uuid="GPU-0"), SimpleNamespace(uuid="GPU-1")]
    monkeypatch.setattr(parallelism, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(parallelism, "open_meter", lambda uuid: nullcontext())
    bench, _ = bench_of(lambda *asked: make_outcome([0.001]), TWO_GPUS)

    with pytest.raises(NotExercisedError, match="NVML"):
        try_usage.experiment(bench)


@pytest.mark.parametrize(
    ("dp", "ddp", "status"),
    [
        ([0.08, 0.01, 0.01], [0.4, 0.6, 0.5], "holds"),
        ([0.5, 0.4, 0.4], [0.4, 0.6, 0.5], "does not hold"),
        ([0.08, 0.01, 0.01], [0.1, 0.6, 0.5], "does not hold"),
    ],
)
def test_c6_needs_idle_gpus_under_dp_and_busy_ones_under_ddp(
    dp: list[float], ddp: list[float], status: str
) -> None:
    assert weigh_usage({"dp": dp, "ddp": ddp}).status == status


def test_c6_takes_the_mean_of_the_samples_that_a_gpu_gave() -> None:
    samples = [
        UsageSample(at_s=0.0, utilization_ratio=ratio, memory_bytes=1) for ratio in (0.2, None, 0.6)
    ]

    assert mean_usage(samples) == pytest.approx(0.4)
    with pytest.raises(NotExercisedError) as refused:
        mean_usage(samples[1:2])
    assert str(refused.value) == "a GPU does not report how busy it is (MIG instances never do)"


# --- C5 ---


def attributed(*, workers: float, ddp: float) -> ClaimFinding:
    alone, by_workers, by_ddp, both = scaled(1.0, workers, ddp, workers * ddp)
    times_s = {
        ("single", 0): alone,
        ("single", 4): by_workers,
        ("ddp:1", 0): by_ddp,
        ("ddp:1", 4): both,
    }
    return try_attribution.experiment(given(times_s))


def test_c5_holds_where_workers_gain_and_ddp_does_not() -> None:
    finding = attributed(workers=0.25, ddp=1.04)

    assert finding.status == "holds"
    factors = {name: factor["value"] for name, factor in finding.figures["factors"].items()}
    assert factors == pytest.approx(
        {
            "total": 0.26,
            "workers": 0.25,
            "ddp_at_0_workers": 1.04,
            "ddp_at_4_workers": 1.04,
        }
    )
    assert factors["total"] == pytest.approx(factors["workers"] * factors["ddp_at_4_workers"])


@pytest.mark.parametrize(
    ("workers", "ddp", "reason"),
    [
        (0.25, 0.5, "DDP by itself, at equal num_workers, is faster here: "),
        (1.5, 1.04, "4 workers cost time here, so there is no gain to attribute: "),
    ],
)
def test_c5_does_not_hold_where_the_gain_is_ddps_or_there_is_none(
    workers: float, ddp: float, reason: str
) -> None:
    finding = attributed(workers=workers, ddp=ddp)

    assert finding.status == "does not hold"
    assert finding.reason.startswith(f"on lenet-mnist-affine {reason}")


def test_c5_is_not_tested_where_noise_hides_where_the_gain_comes_from() -> None:
    by_workers = (1.1, 1.4, 1.0)
    times_s = {
        (parallel, num_workers): times
        for parallel in ("single", "ddp:1")
        for num_workers, times in ((0, FAST), (4, by_workers))
    }

    finding = try_attribution.experiment(given(times_s))

    assert finding.status == "cannot be tested here"
    assert "the noise is too large to say where a gain comes from: total" in finding.reason


def test_c5_trains_all_four_combinations_at_equal_conditions() -> None:
    bench, session = bench_of(lambda workload, recipe, activity: make_outcome([0.002]))

    try_attribution.experiment(bench)

    settings = [(recipe.parallel, recipe.num_workers) for _, recipe, _ in session.measured]
    assert {setting: settings.count(setting) for setting in set(settings)} == {
        ("single", 0): 5,
        ("single", 4): 5,
        ("ddp:1", 0): 5,
        ("ddp:1", 4): 5,
    }


# --- C7 ---

FULL = LearningCurve(losses=(1.0, 0.334), accuracy=0.97, peak_bytes=1000)


def precisions(mixed: LearningCurve, word: Any = "faster") -> ClaimFinding:
    compared: Any = SimpleNamespace(word=word, ratio=0.8, interval=(0.75, 0.85))
    return weigh_precisions(FULL, mixed, compared, precision="amp-bf16")


def test_c7_holds_where_all_four_figures_say_so() -> None:
    finding = precisions(LearningCurve(losses=(1.1, 0.332), accuracy=0.975, peak_bytes=700))

    assert finding.status == "holds"
    assert finding.figures["losses"] == {"fp32": (1.0, 0.334), "amp-bf16": (1.1, 0.332)}
    assert finding.reason == (
        "amp-bf16: the same in less; final loss 0.334 and 0.332; accuracy 97.0 % and 97.5 %; "
        "time x0.80 (0.75 to 0.85, faster); memory 1000 B and 700 B"
    )


@pytest.mark.parametrize(
    ("mixed", "word", "miss"),
    [
        (
            LearningCurve(losses=(0.4,), accuracy=0.97, peak_bytes=700),
            "faster",
            "it learns otherwise",
        ),
        (
            LearningCurve(losses=(None,), accuracy=0.97, peak_bytes=700),
            "faster",
            "it learns otherwise",
        ),
        (
            LearningCurve(losses=(0.334,), accuracy=0.95, peak_bytes=700),
            "faster",
            "it learns otherwise",
        ),
        (
            LearningCurve(losses=(0.334,), accuracy=0.97, peak_bytes=1000),
            "faster",
            "it takes no less memory",
        ),
        (LearningCurve(losses=(0.334,), accuracy=0.97, peak_bytes=700), "slower", "it is slower"),
        (
            LearningCurve(losses=(0.334,), accuracy=0.97, peak_bytes=700),
            "undecided",
            "it is not proven to be faster",
        ),
    ],
)
def test_c7_does_not_hold_where_one_figure_misses(
    mixed: LearningCurve, word: str, miss: str
) -> None:
    finding = precisions(mixed, word)

    assert finding.status == "does not hold"
    assert finding.reason.startswith(f"amp-bf16: {miss}; final loss ")


# --- C10, C11 ---


def profiling(*profiles: Any) -> Any:
    """A bench whose trainings give these profiles, one after the other."""
    runs = iter(SimpleNamespace(profile=profile) for profile in profiles)
    session = SimpleNamespace(profile=lambda *args, num_epochs: next(runs))
    return SimpleNamespace(session=session, say=lambda line: None)


def try_stages_of(forward: float, evaluation: float | None) -> ClaimFinding:
    stages_s = ProfileStages(
        load=1.0, forward=forward, loss_backward=1.0, evaluation=evaluation, other=0.5
    )
    return try_stages.experiment(profiling(SimpleNamespace(stages_s=stages_s)))


@pytest.mark.parametrize(
    ("forward", "evaluation", "status"),
    [(1.0, 2.0, "holds"), (1.0, None, "does not hold"), (9.0, 2.0, "does not hold")],
)
def test_c10_weighs_what_is_around_the_computation_against_it(
    forward: float, evaluation: float | None, status: str
) -> None:
    assert try_stages_of(forward, evaluation).status == status


def test_c10_shows_all_five_stages() -> None:
    finding = try_stages_of(1.0, 2.0)

    assert finding.figures == {
        "workload": "transformer-tiny",
        "load": 1.0,
        "forward": 1.0,
        "loss + backward": 1.0,
        "evaluation": 2.0,
        "other": 0.5,
    }
    assert finding.reason == (
        "on transformer-tiny evaluation, loading and other take 63.6 % of the time"
    )


@pytest.mark.parametrize(
    ("durations_s", "status"),
    [
        ([(3.1, 2.5, 2.5), (3.0, 2.4, 2.6), (3.2, 2.5, 2.7)], "holds"),
        ([(2.2, 2.5, 2.5), (2.3, 2.6, 2.5), (2.2, 2.5, 2.5)], "does not hold"),
        ([(9.0, 2.5, 2.5), (2.4, 2.6, 2.5), (2.4, 2.5, 2.5)], "cannot be tested here"),
    ],
    ids=["slower", "faster", "slower once"],
)
def test_c11_needs_a_first_epoch_that_is_slower_beyond_noise(
    monkeypatch: pytest.MonkeyPatch, durations_s: list[tuple[float, ...]], status: str
) -> None:
    monkeypatch.setattr(trainings, "_NUM_RUNS", len(durations_s))
    profiles = [
        SimpleNamespace(epochs=[SimpleNamespace(duration_s=one) for one in durations])
        for durations in durations_s
    ]

    finding = try_first_epoch.experiment(profiling(*profiles))

    assert finding.status == status
