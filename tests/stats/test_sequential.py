"""The rule on pairs worked out by hand, and what holds for any pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfsuite.stats.evidence import Pair, Prior, Sessions
from perfsuite.stats.sequential import Decision, Rule, decide, follow, weigh_look

QUIET = Rule(tolerance=0.02, limit=0.05, num_cells=24, max_pairs=20, prior=Prior(sd=0.004))
MANY = dataclasses.replace(QUIET, num_cells=480)

log_ratios_of_pairs = st.lists(st.floats(min_value=-0.2, max_value=0.2), min_size=1, max_size=20)
rules = st.builds(
    Rule,
    tolerance=st.sampled_from([0.0, 0.005, 0.02]),
    limit=st.sampled_from([0.02, 0.05]),
    num_cells=st.sampled_from([1, 24, 480]),
    max_pairs=st.sampled_from([3, 10, 20]),
    num_sessions=st.sampled_from([1, 2]),
    prior=st.none() | st.builds(Prior, sd=st.floats(min_value=0.003, max_value=0.1)),
)
errors = st.none() | st.floats(min_value=0.0, max_value=0.1)


def without_stalls(log_ratios: Sequence[float], *, stalls: float = 0.0) -> list[Pair]:
    return [Pair(log_ratio=one, mean_log_ratio=one + stalls, error=0.001) for one in log_ratios]


def sessions(log_ratios: np.ndarray[Any, np.dtype[np.float64]]) -> Sessions:
    return Sessions(log_ratios, log_ratios, np.full_like(log_ratios, 0.001))


pairs = st.lists(
    st.builds(
        Pair,
        log_ratio=st.floats(min_value=-0.2, max_value=0.2),
        mean_log_ratio=st.floats(min_value=-0.2, max_value=0.2),
        error=errors,
    ),
    min_size=1,
    max_size=20,
)


def test_the_bounds_are_those_of_the_evidence_at_the_shares_of_the_look() -> None:
    rule = Rule(tolerance=0.02, limit=0.05, num_cells=1, max_pairs=3)

    decision = decide(without_stalls([0.02, 0.04, 0.03]), rule)

    # SE = 0.0057735, for FAIL 0.0067082, with 2 degrees of freedom; of alpha 0.05 x 0.8: t(0.96) =
    # 3.3198; of beta half of 0.075 x 0.8: t(0.97) = 3.8964; t(0.8) = 1.0607.
    lower, upper = decision.interval
    assert decision.word == "INCONCLUSIVE"
    assert decision.ratio == decision.mean_ratio == pytest.approx(math.exp(0.03))
    assert math.log(lower) == pytest.approx(0.03 - 3.3198 * 0.0067082, abs=1e-6)
    assert math.log(upper) == pytest.approx(0.03 + 3.8964 * 0.0057735, abs=1e-6)
    assert decision.detectable == pytest.approx(
        math.expm1(math.log(1.02) + (3.3198 + 1.0607) * 0.0067082), abs=1e-6
    )


@pytest.mark.parametrize(
    ("log_ratios", "word", "num_pairs"),
    [
        ([0.0, 0.001, -0.001], "PASS", 2),
        ([0.15, 0.149, 0.151] * 2, "FAIL", 6),
        # So few may agree by chance, where a process is slow for its whole life.
        ([0.15, 0.149, 0.151, 0.15, 0.15], None, 5),
        # Below the limit as well, but IMPROVED comes first, and never at two pairs.
        ([-0.15, -0.149, -0.151], "IMPROVED", 3),
        # Faster than the tolerance, which three pairs do not prove of 24 cells.
        ([-0.03, -0.029, -0.031], "PASS", 3),
        # Faster, but not by more than the tolerance.
        ([-0.015, -0.016, -0.014], "PASS", 2),
        # Neither above 2 % nor below 5 %, yet.
        ([0.045, 0.05, 0.04], None, 3),
        ([0.045, 0.05], None, 2),
        ([0.3, 0.3], None, 2),
    ],
)
def test_a_word_needs_a_bound_beyond_its_line(
    log_ratios: list[float], word: str | None, num_pairs: int
) -> None:
    decision = decide(without_stalls(log_ratios), QUIET)

    assert (decision.word, decision.num_pairs) == (word, num_pairs)


def test_above_the_tolerance_is_a_regression_also_where_it_is_below_the_limit() -> None:
    rule = dataclasses.replace(QUIET, limit=0.5, prior=None)

    assert decide(without_stalls([0.15, 0.149, 0.151] * 2), rule).word == "FAIL"


def test_who_allows_fewer_than_six_pairs_has_a_fail_of_fewer() -> None:
    rule = dataclasses.replace(QUIET, max_pairs=4)

    assert decide(without_stalls([0.15, 0.149, 0.151]), rule).word is None
    assert decide(without_stalls([0.15, 0.149, 0.151, 0.15]), rule).word == "FAIL"


def test_an_improvement_is_bounded_at_the_level_of_the_whole_family() -> None:
    improved = decide(without_stalls([-0.15, -0.149, -0.151]), QUIET)
    evidence = weigh_look(sessions(np.array([[-0.15, -0.149, -0.151]])), QUIET)

    assert improved.interval[1] == math.exp(evidence.improved[0]) > math.exp(evidence.upper[0])


def test_stalls_keep_a_cell_from_passing_but_do_not_fail_it() -> None:
    decision = decide(without_stalls([0.0, 0.001, -0.001], stalls=0.3), QUIET)

    assert decision.word is None
    assert decision.mean_ratio == pytest.approx(math.exp(0.3))
    assert decision.mean_differs
    last = decide(without_stalls([0.0, 0.001, -0.001] * 7, stalls=0.3), QUIET)
    assert (last.word, last.num_pairs) == ("INCONCLUSIVE", 20)
    assert last.interval[1] < 1.05


def test_stalls_of_the_base_do_not_matter() -> None:
    assert decide(without_stalls([0.0, 0.001, -0.001], stalls=-0.3), QUIET).word == "PASS"


def test_a_history_cannot_make_a_fail() -> None:
    log_ratios = [0.06, 0.09, 0.05, 0.10]

    for prior in (None, Prior(sd=0.001), Prior(sd=0.1)):
        rule = dataclasses.replace(QUIET, prior=prior)
        assert decide(without_stalls(log_ratios), rule).word is None


def test_rounds_that_explain_more_than_the_pairs_show_keep_a_cell_from_failing() -> None:
    chance = [Pair(log_ratio=0.15, mean_log_ratio=0.15, error=0.05)] * 6

    assert decide(without_stalls([0.15] * 6), QUIET).word == "FAIL"
    assert decide(chance, QUIET).word is None


def test_at_the_last_look_nothing_proven_is_inconclusive() -> None:
    undecided = without_stalls([0.0, 0.07] * 10)

    assert decide(undecided[:19], QUIET).word is None
    decision = decide(undecided, QUIET)

    assert (decision.word, decision.num_pairs) == ("INCONCLUSIVE", 20)
    assert decision.interval[0] < 1.02
    assert decision.interval[1] > 1.05


def test_a_re_run_goes_on_from_inconclusive_pairs() -> None:
    undecided = without_stalls([0.0, 0.07] * 10)
    rerun = dataclasses.replace(QUIET, num_sessions=2)

    assert decide(undecided, rerun).word is None
    decision = decide([*undecided, *without_stalls([0.0] * 20)], rerun)

    assert (decision.word, decision.num_pairs) == ("PASS", 30)


def test_between_looks_the_interval_runs_on_at_the_level_of_the_next_look() -> None:
    log_ratios = [0.0, 0.07, 0.0, 0.07, 0.0, 0.07, 0.0]

    decision = decide(without_stalls(log_ratios), QUIET)

    evidence = weigh_look(sessions(np.array([log_ratios])), QUIET)
    assert decision.word is None
    assert QUIET.shares(7) == QUIET.shares(8)
    assert decision.interval == (math.exp(evidence.lower[0]), math.exp(evidence.upper[0]))


def test_one_pair_knows_nothing_of_its_spread() -> None:
    assert decide([Pair(log_ratio=0.03, mean_log_ratio=0.05)], QUIET) == Decision(
        word=None,
        ratio=math.exp(0.03),
        mean_ratio=math.exp(0.05),
        mean_differs=False,
        interval=(0.0, math.inf),
        num_pairs=1,
        detectable=math.inf,
    )


def test_two_pairs_without_history_have_an_interval_however_wide() -> None:
    decision = decide(
        without_stalls([-400.0, 400.0]), dataclasses.replace(QUIET, prior=None, num_cells=24)
    )

    assert decision.interval == (0.0, math.inf)
    assert decision.detectable == math.inf


# --- many cells: two stages ---

FLAGGED = (0.15, 0.149, 0.151) * 2


def test_of_many_cells_a_slowdown_is_judged_again_on_fresh_pairs() -> None:
    flagged = decide(without_stalls(FLAGGED), MANY)
    confirmed = decide(without_stalls([*FLAGGED, *(0.14, 0.15) * 6]), MANY)

    assert (flagged.word, flagged.num_pairs) == (None, 6)
    assert flagged.ratio == pytest.approx(math.exp(0.15))
    assert (confirmed.word, confirmed.num_pairs) == ("FAIL", 18)
    assert confirmed.ratio == pytest.approx(math.exp(0.145))  # of the fresh pairs alone


def test_of_many_cells_an_improvement_is_judged_again_too() -> None:
    faster = [-one for one in FLAGGED]

    assert decide(without_stalls(faster), MANY).word is None
    assert decide(without_stalls([*faster, *(-0.14, -0.15) * 6]), MANY).word == "IMPROVED"
    assert decide(without_stalls([*faster, *(0.001, -0.001) * 6]), MANY).word == "PASS"


@pytest.mark.parametrize(
    ("fresh", "word"),
    [
        ((0.001, -0.001) * 6, "PASS"),
        ((0.0, 0.1) * 6, "INCONCLUSIVE"),
        ((0.14, 0.15) * 5, None),
        ((0.15,), None),
    ],
)
def test_what_fresh_pairs_do_not_confirm_is_no_regression(
    fresh: tuple[float, ...], word: str | None
) -> None:
    assert decide(without_stalls([*FLAGGED, *fresh]), MANY).word == word


def test_sessions_that_are_followed_together_end_as_each_does_alone() -> None:
    drawn = np.random.default_rng(1).normal(0.06, 0.03, (200, 40))

    words, begins, ends = follow(sessions(drawn), MANY)

    alone = [follow(sessions(row[np.newaxis]), MANY) for row in drawn]
    assert [*zip(words, begins, ends, strict=True)] == [
        (word[0], begin[0], end[0]) for word, begin, end in alone
    ]
    # Fresh pairs of some end where others are flagged.
    assert {*ends[begins > 0]} & {*begins}


def test_before_two_fresh_pairs_the_interval_is_of_what_was_flagged() -> None:
    flagged = decide(without_stalls(FLAGGED), MANY)
    one_more = decide(without_stalls([*FLAGGED, 0.0]), MANY)

    assert one_more.interval == flagged.interval


@pytest.mark.parametrize("num_cells", [200, 500, 2000])
def test_both_stages_together_spend_the_level_of_one_cell_and_beta_once(num_cells: int) -> None:
    first, second = dataclasses.replace(QUIET, num_cells=num_cells).stages

    assert first.alpha / first.num_cells * second.alpha == pytest.approx(0.05 / num_cells)
    assert first.beta + second.beta == pytest.approx(0.075)


def test_few_cells_are_judged_in_one_stage() -> None:
    rule = dataclasses.replace(QUIET, num_cells=199)

    assert rule.stages == (rule,)


# --- any pairs ---


@given(log_ratios_of_pairs, rules, st.floats(min_value=1e-4, max_value=0.5))
def test_a_larger_slowdown_never_looks_better(
    log_ratios: list[float], rule: Rule, shift: float
) -> None:
    # A slower cell may leave the first stage at another look, and two pairs that seem to be faster
    # than the tolerance wait for a third one.
    rule = dataclasses.replace(rule, num_cells=24)
    assume(np.mean(log_ratios[:2]) >= math.log1p(-rule.tolerance))
    before = decide(without_stalls(log_ratios), rule)
    after = decide(without_stalls([log_ratio + shift for log_ratio in log_ratios]), rule)

    if after.word in ("PASS", "IMPROVED"):
        assert before.word in ("PASS", "IMPROVED")
    if after.word == "IMPROVED" and before.num_pairs == after.num_pairs:
        assert before.word == "IMPROVED"
    if before.word == "FAIL":
        assert after.word == "FAIL"


@given(pairs, rules)
def test_a_decision_rests_on_the_pairs_up_to_it_alone(some: list[Pair], rule: Rule) -> None:
    decision = decide(some, rule)

    assert decide(some[: decision.num_pairs], rule) == decision
    if rule.num_cells < 200:
        assert decision.word is None or decision.num_pairs in rule.looks
    if decision.word is not None:
        assert decide([*some, *without_stalls([0.1, -0.1])], rule) == decision


@given(log_ratios_of_pairs, rules, st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_between_two_looks_does_not_matter(
    log_ratios: list[float], rule: Rule, random: Any
) -> None:
    rule = dataclasses.replace(rule, num_cells=24)
    looks = rule.looks
    shuffled = []
    for begin, end in zip((0, *looks), looks, strict=False):
        stretch = log_ratios[begin:end]
        random.shuffle(stretch)
        shuffled += stretch
    judged = log_ratios[: looks[-1]]

    before, after = decide(without_stalls(judged), rule), decide(without_stalls(shuffled), rule)

    assert (before.word, before.num_pairs) == (after.word, after.num_pairs)
    if before.num_pairs > 1:
        assert after.ratio == pytest.approx(before.ratio)
        assert after.interval == pytest.approx(before.interval)


@given(pairs.filter(lambda some: len(some) > 1), rules)
def test_the_interval_holds_the_ratio(some: list[Pair], rule: Rule) -> None:
    decision = decide(some, rule)

    lower, upper = decision.interval
    assert lower < decision.ratio < upper
    assert decision.detectable > rule.tolerance


@given(pairs, rules)
def test_more_cells_under_test_never_make_a_fail(some: list[Pair], rule: Rule) -> None:
    many = decide(some, dataclasses.replace(rule, num_cells=100)).word

    if many == "FAIL":
        assert decide(some, dataclasses.replace(rule, num_cells=1)).word == "FAIL"


@given(rules, st.integers(min_value=0, max_value=2**32 - 1))
def test_many_sessions_at_once_are_judged_as_each_alone(rule: Rule, seed: int) -> None:
    log_ratios = np.random.default_rng(seed).normal(0.06, 0.03, size=(8, 18))

    words, _, ends = follow(sessions(log_ratios), rule)

    alone = [decide(without_stalls(session.tolist()), rule) for session in log_ratios]
    assert list(zip(words, ends, strict=True)) == [(one.word or "", one.num_pairs) for one in alone]


def test_there_is_no_decision_without_a_pair() -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        decide([], QUIET)

    assert str(refused.value) == "there is no pair to decide on; the rule needs at least one"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tolerance": 1.5, "limit": 2.0},
            "a rule's tolerance is 1.5; it must be in [0, 1)",
        ),
        ({"tolerance": -0.01}, "a rule's tolerance is -0.01; it must be in [0, 1)"),
        ({"tolerance": math.nan}, "a rule's tolerance is nan; it must be in [0, 1)"),
        (
            {"limit": 0.01},
            "a rule's limit is 0.01; it must be finite and at least the tolerance, 0.02",
        ),
        (
            {"limit": math.inf},
            "a rule's limit is inf; it must be finite and at least the tolerance, 0.02",
        ),
        ({"num_cells": 0}, "a rule's num_cells is 0; it must be at least 1"),
        ({"num_sessions": 0}, "a rule's num_sessions is 0; it must be at least 1"),
        ({"max_pairs": 2}, "a rule's max_pairs is 2; it must be at least 3"),
        ({"alpha": 0.0}, "a rule's alpha is 0.0; it must be in (0, 0.5)"),
        ({"beta": 0.5}, "a rule's beta is 0.5; it must be in (0, 0.5)"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        dataclasses.replace(QUIET, **fields)

    assert str(refused.value) == message
