"""The rule's word under what is accepted and the floor, and what the total time adds to it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from perfsuite.gate.judge.trial import CellPolicy, Trial
from perfsuite.stats.evidence import Pair
from perfsuite.stats.sequential import Rule

USUAL = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
# Noise of three pairs of a quiet machine.
QUIET = (0.001, -0.001, 0.0)


def judged(
    ratio: float,
    mean_ratio: float,
    policy: CellPolicy = USUAL,
    *,
    noise_of_mean: Sequence[float] = QUIET,
) -> Trial:
    """A cell after its last pair; the base takes 1 ms."""
    rule = Rule(tolerance=policy.tolerance, limit=policy.limit, num_cells=1, max_pairs=3)
    trial = Trial(name="a", policy=policy, rule=rule)
    for deviation, of_mean in zip(QUIET, noise_of_mean, strict=True):
        log_ratio = math.log(ratio) + deviation
        trial.pairs.append(Pair(log_ratio=log_ratio, mean_log_ratio=math.log(mean_ratio) + of_mean))
        trial.raw.append((0.001, 0.001 * math.exp(log_ratio)))
    trial.decide()
    return trial


@pytest.mark.parametrize(
    ("ratio", "mean_ratio", "word", "reason"),
    [
        (1.0, 1.0, "PASS", None),
        (1.0, 1.375, "INCONCLUSIVE", "typical +0.0 %, mean +37.5 %: stalls"),
        (1.0, 1.04, "PASS", "typical +0.0 %, mean +4.0 %"),
        (1.2, 1.4, "FAIL", "typical +20.0 %, mean +40.0 %"),
        (0.8, 0.9, "IMPROVED", "typical -20.0 %, mean -10.0 %"),
        (0.8, 1.4, "INCONCLUSIVE", "typical -20.0 %, mean +40.0 %: stalls"),
    ],
)
def test_both_locations_are_told_where_they_differ(
    ratio: float, mean_ratio: float, word: str, reason: str | None
) -> None:
    trial = judged(ratio, mean_ratio)

    assert (trial.word, trial.reason) == (word, reason)
    assert trial.decision is not None
    assert trial.decision.mean_ratio == pytest.approx(mean_ratio)


def test_a_mean_that_is_only_noisy_is_told_where_it_alone_keeps_a_cell_from_passing() -> None:
    trial = judged(1.0, 1.01, noise_of_mean=(0.03, -0.03, 0.0))

    assert trial.word == "INCONCLUSIVE"
    assert trial.reason == (
        "typical +0.0 %, mean +1.0 %: the mean is not proven to be below the limit"
    )


def test_what_is_accepted_is_accepted_of_the_total_time_too() -> None:
    trial = judged(1.3, 1.3, dataclasses.replace(USUAL, accepted_slowdown=1.3))

    assert (trial.word, trial.reason) == ("PASS", "a slowdown by 30.0 % is accepted")
    assert trial.decision is not None
    assert (trial.decision.ratio, trial.decision.mean_ratio) == pytest.approx((1.3, 1.3))


@pytest.mark.parametrize(("mean_ratio", "word"), [(1.2, "PASS"), (1.5, "FAIL")])
def test_the_floor_counts_for_the_total_time(mean_ratio: float, word: str) -> None:
    trial = judged(1.2, mean_ratio, dataclasses.replace(USUAL, floor_s=300e-6))

    assert trial.word == word


def test_tolerance_and_limit_hold_against_the_base_as_it_is() -> None:
    policy = CellPolicy(tolerance=0.25, limit=0.5, floor_s=0.0, accepted_slowdown=2.0)

    assert policy.bounds == (1.5, 2.0)
