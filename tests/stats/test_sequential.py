"""The rule against numbers worked out by hand with a table of t, and what holds for any pairs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfsuite.stats.sequential import Prior, Rule, decide, follow, looks, shares, weigh

# One cell and one look: all of alpha and beta is spent there.
ONE_LOOK = Rule(tolerance=0.02, limit=0.05, num_cells=1, max_pairs=3)
QUIET = Rule(tolerance=0.02, limit=0.05, num_cells=24, prior=Prior(sd=0.004))

pairs = st.lists(st.floats(min_value=-0.2, max_value=0.2), min_size=1, max_size=20)
rules = st.builds(
    Rule,
    tolerance=st.sampled_from([0.0, 0.005, 0.02]),
    limit=st.sampled_from([0.02, 0.05]),
    num_cells=st.sampled_from([1, 24]),
    max_pairs=st.sampled_from([3, 10, 16]),
    prior=st.none() | st.builds(Prior, sd=st.floats(min_value=0.003, max_value=0.1)),
)


def with_prior(sd: float) -> Rule:
    return dataclasses.replace(ONE_LOOK, prior=Prior(sd=sd))


def test_a_prior_that_is_borne_out_adds_its_degrees_of_freedom() -> None:
    # m = 0.04, s^2 = 1e-4 = s0^2, so v = 1e-4 with 8 + 2 degrees of freedom; SE = 0.0057735.
    # t(0.95, 10) = 1.8125, t(0.9, 10) = 1.3722, t(0.8, 10) = 0.8791.
    decision = decide([0.03, 0.05, 0.04], with_prior(sd=0.01))

    assert decision.word == "FAIL"
    assert decision.ratio == pytest.approx(math.exp(0.04))
    lower, upper = decision.interval
    assert math.log(lower) == pytest.approx(0.04 - 1.8125 * 0.0057735, abs=1e-6)
    assert math.log(upper) == pytest.approx(0.04 + 1.3722 * 0.0057735, abs=1e-6)
    assert decision.num_pairs == 3
    # 0.0198026 + (1.8125 + 0.8791) 0.0057735 = 0.0353424
    assert decision.detectable == pytest.approx(math.expm1(0.0353424), abs=1e-6)


def test_without_a_prior_the_pairs_speak_for_themselves() -> None:
    # s^2 = 1e-4 with 2 degrees of freedom: t(0.95, 2) = 2.9200, t(0.9, 2) = 1.8856.
    decision = decide([0.03, 0.05, 0.04], ONE_LOOK)

    lower, upper = decision.interval
    assert math.log(lower) == pytest.approx(0.04 - 2.9200 * 0.0057735, abs=1e-6)
    assert math.log(upper) == pytest.approx(0.04 + 1.8856 * 0.0057735, abs=1e-6)


def test_a_prior_yields_to_pairs_that_spread_more() -> None:
    # s0^2 = 4e-5 holds to 5e-5, but s^2 = 1e-4: of 8 degrees of freedom 4 are left.
    # v = (4 x 4e-5 + 2 x 1e-4) / 6 = 6e-5; SE = sqrt(6e-5 / 3) = 0.0044721; t(0.95, 6) = 1.9432.
    decision = decide([0.03, 0.05, 0.04], with_prior(sd=math.sqrt(4e-5)))

    assert math.log(decision.interval[0]) == pytest.approx(0.04 - 1.9432 * 0.0044721, abs=1e-6)


def test_a_prior_of_a_noisier_machine_widens_the_interval() -> None:
    # v = (8 x 4e-4 + 2 x 1e-4) / 10 = 3.4e-4; SE = 0.0106458; lower = 0.0207, just above 0.0198.
    decision = decide([0.03, 0.05, 0.04], with_prior(sd=0.02))

    assert math.log(decision.interval[0]) == pytest.approx(0.04 - 1.8125 * 0.0106458, abs=1e-6)
    assert decision.word == "FAIL"


def test_equal_pairs_are_given_the_smallest_spread_that_a_machine_has() -> None:
    # v = 0.001^2, SE = 0.00057735, t(0.95, 2) = 2.9200.
    decision = decide([0.03, 0.03, 0.03], ONE_LOOK)

    assert math.log(decision.interval[0]) == pytest.approx(0.03 - 2.9200 * 0.00057735, abs=1e-6)
    assert decision.word == "FAIL"


def test_from_six_pairs_on_a_spike_is_pulled_in_to_two_standard_deviations() -> None:
    # s^2 = 0.08^2 / 6, so the fence is at 2 x 0.0326599 = 0.0653197 from the median 0; then
    # m = 0.0653197 / 6 = 0.0108866 and SE = sqrt(0.0653197^2 / 6 / 6), the same number.
    rule = Rule(tolerance=0.02, limit=0.05, num_cells=1, max_pairs=6)

    decision = decide([0.08, 0.0, 0.0, 0.0, 0.0, 0.0], rule)

    assert (decision.word, decision.num_pairs) == ("PASS", 6)
    assert math.log(decision.ratio) == pytest.approx(0.0108866, abs=1e-6)
    # beta: 0.1 x 36 / (9 + 16 + 25 + 36) = 0.041860; t(0.95814, 5) = 2.1532 (interpolated).
    assert math.log(decision.interval[1]) == pytest.approx(0.0108866 * 3.1532, abs=2e-5)


@pytest.mark.parametrize(
    ("log_ratios", "word"),
    [
        ([0.0, 0.001, -0.001], "PASS"),
        # Above the tolerance and below the limit, both proven: a regression all the same.
        ([0.035, 0.036, 0.034], "FAIL"),
        ([0.05, 0.049, 0.051], "FAIL"),
        # Below the limit as well, but IMPROVED is tested first.
        ([-0.05, -0.049, -0.051], "IMPROVED"),
        # Faster, but not by more than the tolerance.
        ([-0.015, -0.016, -0.014], "PASS"),
        # Neither above 2 % nor below 5 %, yet.
        ([0.035, 0.045, 0.025], None),
        ([0.0, 0.001], None),
    ],
)
def test_a_word_needs_a_bound_beyond_its_line(log_ratios: list[float], word: str | None) -> None:
    assert decide(log_ratios, QUIET).word == word


def test_at_the_last_look_nothing_proven_is_inconclusive() -> None:
    undecided = [0.0, 0.07] * 8

    assert decide(undecided[:15], QUIET).word is None
    decision = decide(undecided, QUIET)

    assert (decision.word, decision.num_pairs) == ("INCONCLUSIVE", 16)
    assert decision.interval[0] < 1.02
    assert decision.interval[1] > 1.05


def test_between_looks_the_interval_runs_on_at_the_level_of_the_next_look() -> None:
    log_ratios = [0.0, 0.07, 0.0, 0.07, 0.0, 0.07, 0.0]

    decision = decide(log_ratios, QUIET)

    evidence = weigh(np.array([log_ratios]), QUIET)
    assert decision.word is None
    assert shares(QUIET, 7) == shares(QUIET, 8)
    assert decision.interval == (math.exp(evidence.lower[0]), math.exp(evidence.upper[0]))


def test_one_pair_knows_nothing_of_its_spread() -> None:
    decision = decide([0.03], QUIET)

    assert decision.word is None
    assert decision.ratio == pytest.approx(math.exp(0.03))
    assert decision.interval == (0.0, math.inf)
    assert decision.detectable == math.inf


def test_two_pairs_without_history_have_an_interval_however_wide() -> None:
    decision = decide([-400.0, 400.0], dataclasses.replace(QUIET, prior=None))

    assert decision.interval == (0.0, math.inf)
    assert decision.detectable == math.inf


@pytest.mark.parametrize(
    ("max_pairs", "expected"),
    [
        (3, (3,)),
        (4, (3, 4)),
        (14, (3, 4, 5, 6, 8, 10, 12, 14)),
        (16, (3, 4, 5, 6, 8, 10, 12, 16)),
        (64, (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)),
        (100, (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 100)),
    ],
)
def test_the_last_look_is_at_the_most_pairs(max_pairs: int, expected: tuple[int, ...]) -> None:
    assert looks(dataclasses.replace(QUIET, max_pairs=max_pairs)) == expected


@given(rules)
def test_all_looks_together_spend_alpha_and_beta_and_later_ones_more(rule: Rule) -> None:
    spent = [shares(rule, look) for look in looks(rule)]

    assert sum(alpha for alpha, _ in spent) == pytest.approx(1)
    assert sum(beta for _, beta in spent) == pytest.approx(1)
    assert spent == sorted(spent)


@given(pairs, rules, st.floats(min_value=1e-4, max_value=0.5))
@example(
    # Without the shift PASS at three pairs; with it IMPROVED, which takes a fourth.
    [-0.1875, -0.1875, -0.140625, -0.125],
    Rule(tolerance=0.0, limit=0.02, num_cells=1, max_pairs=10),
    0.0625,
)
def test_a_larger_slowdown_never_looks_better(
    log_ratios: list[float], rule: Rule, shift: float
) -> None:
    before = decide(log_ratios, rule)
    after = decide([log_ratio + shift for log_ratio in log_ratios], rule)

    if before.word == "FAIL":
        assert after.word == "FAIL"
    if after.word in ("PASS", "IMPROVED"):
        assert before.word in ("PASS", "IMPROVED")
        assert before.num_pairs <= after.num_pairs
    if after.word == "IMPROVED" and before.num_pairs == after.num_pairs:
        assert before.word == "IMPROVED"


@given(pairs, rules)
def test_a_decision_rests_on_the_pairs_up_to_it_alone(log_ratios: list[float], rule: Rule) -> None:
    decision = decide(log_ratios, rule)

    assert decide(log_ratios[: decision.num_pairs], rule) == decision
    assert decision.word is None or decision.num_pairs in looks(rule)
    if decision.word is not None:
        assert decide([*log_ratios, 0.1, -0.1], rule) == decision


@given(pairs, rules, st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_between_two_looks_does_not_matter(
    log_ratios: list[float], rule: Rule, random: Any
) -> None:
    shuffled = []
    for begin, end in zip((0, *looks(rule)), looks(rule), strict=False):
        stretch = log_ratios[begin:end]
        random.shuffle(stretch)
        shuffled += stretch
    judged = log_ratios[: rule.max_pairs]

    before, after = decide(judged, rule), decide(shuffled, rule)

    assert (before.word, before.num_pairs) == (after.word, after.num_pairs)
    if before.num_pairs > 1:
        assert after.ratio == pytest.approx(before.ratio)
        assert after.interval == pytest.approx(before.interval)


@given(pairs.filter(lambda log_ratios: len(log_ratios) > 1), rules)
def test_the_interval_holds_the_ratio(log_ratios: list[float], rule: Rule) -> None:
    decision = decide(log_ratios, rule)

    lower, upper = decision.interval
    assert lower < decision.ratio < upper
    assert decision.detectable > rule.tolerance


@given(
    st.lists(st.floats(min_value=-0.2, max_value=0.2), min_size=2, max_size=16),
    st.floats(min_value=0.003, max_value=0.1),
    st.floats(min_value=1.0, max_value=10.0),
)
def test_the_evidence_scales_with_the_pairs_and_their_prior(
    log_ratios: list[float], sd: float, factor: float
) -> None:
    sessions = np.array([log_ratios])

    evidence = weigh(sessions, dataclasses.replace(QUIET, prior=Prior(sd=sd)))
    scaled = weigh(factor * sessions, dataclasses.replace(QUIET, prior=Prior(sd=factor * sd)))

    for name in ("location", "lower", "upper"):
        assert getattr(scaled, name) == pytest.approx(
            factor * getattr(evidence, name), rel=1e-6, abs=1e-9
        )


@given(pairs, rules)
def test_more_cells_under_test_never_make_a_fail(log_ratios: list[float], rule: Rule) -> None:
    many = decide(log_ratios, dataclasses.replace(rule, num_cells=100)).word

    if many == "FAIL":
        assert decide(log_ratios, dataclasses.replace(rule, num_cells=1)).word == "FAIL"


@given(rules, st.integers(min_value=0, max_value=2**32 - 1))
def test_many_sessions_at_once_are_judged_as_each_alone(rule: Rule, seed: int) -> None:
    sessions = np.random.default_rng(seed).normal(0.02, 0.02, size=(8, 18))

    words, ends = follow(sessions, rule)

    alone = [decide(session.tolist(), rule) for session in sessions]
    assert list(zip(words, ends, strict=True)) == [(one.word, one.num_pairs) for one in alone]


@pytest.mark.parametrize(
    ("log_ratios", "message"),
    [
        ([], "there is no pair to decide on; the rule needs at least one"),
        ([0.0, math.nan], "pair 2 has the log ratio nan; it must be finite"),
        ([math.inf, 0.0, 0.0], "pair 1 has the log ratio inf; it must be finite"),
        ([0.0, 0.0, -math.inf], "pair 3 has the log ratio -inf; it must be finite"),
    ],
)
def test_pairs_that_are_no_numbers_are_refused(log_ratios: list[float], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        decide(log_ratios, QUIET)

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tolerance": 1.5, "limit": 2.0},
            "the tolerance is 1.5; it must be in [0, 1)",
        ),
        ({"tolerance": -0.01}, "the tolerance is -0.01; it must be in [0, 1)"),
        ({"tolerance": math.nan}, "the tolerance is nan; it must be in [0, 1)"),
        (
            {"limit": 0.01},
            "the limit is 0.01; it must be finite and at least the tolerance, 0.02",
        ),
        (
            {"limit": math.inf},
            "the limit is inf; it must be finite and at least the tolerance, 0.02",
        ),
        ({"num_cells": 0}, "the number of cells is 0; it must be at least 1"),
        ({"max_pairs": 2}, "the number of pairs is at most 2; the rule needs 3"),
        ({"alpha": 0.0}, "alpha is 0.0; it must be in (0, 0.5)"),
        ({"beta": 0.5}, "beta is 0.5; it must be in (0, 0.5)"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        dataclasses.replace(QUIET, **fields)

    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sd": 0.0}, "a prior's sd is 0.0; it must be positive and finite"),
        ({"sd": math.nan}, "a prior's sd is nan; it must be positive and finite"),
        (
            {"sd": 0.01, "degrees_of_freedom": math.inf},
            "a prior's degrees_of_freedom is inf; it must be positive and finite",
        ),
    ],
)
def test_a_prior_that_says_nothing_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Prior(**fields)

    assert str(refused.value) == message
