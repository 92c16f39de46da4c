from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from perfsuite import Recipe
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.worker.equivalence.comparison import Discrepancy, Tensors, judge
from perfsuite.worker.equivalence.limits import BITWISE
from perfsuite.worker.equivalence.planted_bugs import Bug, describe_missed
from perfsuite.worker.equivalence.proof import Proof

RECIPE = Recipe(parallel="ddp:2")
FOUND = {"a doubled gradient": True}
MISSED = {"a lost gradient": False, "a shifted gradient": False}


def evidence(error: float, limit: float = 0.1, **fields: Any) -> Discrepancy:
    defaults: dict[str, Any] = {"what": "gradient", "step": 1, "formula": "2 u"}
    return Discrepancy(error=error, limit=limit, **{**defaults, **fields})


def test_the_error_closest_to_its_limit_is_shown_where_all_are_within() -> None:
    proof = Proof(
        check="T0",
        evidence=[
            evidence(0.05, 1.0, step=1),
            evidence(0.04, 0.1, step=3, what="loss"),
            evidence(0.02, 0.1, step=2),
        ],
        planted={**FOUND, "a lost gradient": True},
    )

    assert proof.conclude(RECIPE) == EquivalenceRow(
        parallel="ddp:2",
        precision="fp32",
        checkpointing="none",
        world_size=2,
        check="T0",
        status="equivalent",
        error=0.04,
        limit=0.1,
        power="2/2",
        reason="limit 1.0e-01 = 2 u",
    )


def test_a_rank_shows_before_each_planted_bug_that_it_is_not_stuck() -> None:
    done: list[str] = []

    def judge_slowly(gradients: Tensors) -> list[Discrepancy]:
        done.append("compared")
        return [evidence(1.0)]

    proof = Proof(check="T0", on_bug=lambda: done.append("shown"))
    proof.plant(
        [Bug(name, "a cause", {}) for name in ("a doubled gradient", "a lost gradient")],
        judge_slowly,
    )

    assert done == ["shown", "compared"] * 2
    assert proof.planted == {"a doubled gradient": True, "a lost gradient": True}


def test_equal_bits_are_said_to_be_equal() -> None:
    proof = Proof(check="checkpointing", evidence=[evidence(0.0, 0.0, formula="bit for bit")])

    row = proof.conclude(RECIPE)

    assert (row.status, row.reason) == ("equivalent", "equal bit for bit")
    assert row.power is None


def test_a_mismatch_goes_before_no_power_and_before_equivalence() -> None:
    proof = Proof(
        check="T1",
        evidence=[evidence(0.05), evidence(0.3), evidence(0.0)],
        planted=MISSED,
        vacuous=["all gradients are zero"],
    )

    assert proof.conclude(RECIPE) == EquivalenceRow.of(
        RECIPE,
        "T1",
        "mismatch",
        "the gradient differs at step 1 by 3.0e-01, over the limit of 1.0e-01 (2 u)",
        error=0.3,
        limit=0.1,
        planted=MISSED,
    )


def test_no_power_goes_before_equivalence_and_gives_every_reason() -> None:
    proof = Proof(
        check="T0",
        evidence=[evidence(0.05)],
        planted=FOUND | MISSED,
        vacuous=["all gradients are zero", "two ranks saw the same data"],
    )

    row = proof.conclude(RECIPE)

    assert row.status == "no power"
    assert (row.error, row.limit, row.power) == (0.05, 0.1, "1/3")
    assert row.reason == (
        "all gradients are zero; two ranks saw the same data; it does not find a planted bug: "
        "a lost gradient; a shifted gradient"
    )


def test_nothing_to_compare_is_no_power() -> None:
    assert Proof(check="T2").conclude(RECIPE) == EquivalenceRow.of(
        RECIPE, "T2", "no power", "there was nothing to compare"
    )


def test_notes_come_at_the_end_of_any_reason() -> None:
    passed = Proof(check="T1", evidence=[evidence(0.05)], notes=["float32 is the truth", "so"])
    failed = Proof(check="T1", evidence=[evidence(0.2)], notes=["float32 is the truth"])

    assert passed.conclude(RECIPE).reason == "limit 1.0e-01 = 2 u; float32 is the truth; so"
    assert failed.conclude(RECIPE).reason == (
        "the gradient differs at step 1 by 2.0e-01, over the limit of 1.0e-01 (2 u); "
        "float32 is the truth"
    )


def test_the_first_step_that_went_wrong_decides_and_not_the_worst() -> None:
    proof = Proof(
        check="T1",
        evidence=[evidence(9.0, step=3), evidence(0.2, step=2), evidence(0.01, step=1)],
    )

    row = proof.conclude(RECIPE)

    assert row.error == 0.2
    assert row.reason.startswith("the gradient differs at step 2 by 2.0e-01")


def test_the_worst_of_that_step_decides() -> None:
    proof = Proof(check="T1", evidence=[evidence(0.2), evidence(0.4, what="loss")])

    assert proof.conclude(RECIPE).reason == (
        "the loss differs at step 1 by 4.0e-01, over the limit of 1.0e-01 (2 u)"
    )


def test_a_named_tensor_is_shown_instead_of_a_worse_total() -> None:
    proof = Proof(
        check="T0",
        evidence=[
            evidence(math.inf),
            evidence(0.2, name="head.weight"),
            evidence(0.9, name="head.bias"),
            evidence(0.5, step=2, name="later"),
        ],
    )

    row = proof.conclude(RECIPE)

    assert (row.error, row.limit) == (0.2, 0.1)
    assert row.reason == (
        "the gradient of 'head.weight' differs at step 1 by 2.0e-01, over the limit of 1.0e-01 "
        "(2 u)"
    )


def test_a_named_tensor_of_a_later_step_does_not_replace_an_earlier_total() -> None:
    proof = Proof(check="T0", evidence=[evidence(0.2), evidence(0.9, step=2, name="later")])

    assert proof.conclude(RECIPE).reason.startswith("the gradient differs at step 1")


def test_the_rank_is_named_and_equal_bits_are_due() -> None:
    proof = Proof(
        check="T0",
        evidence=[evidence(0.5, 0.0, formula="on all ranks", name="weight", rank=1, step=2)],
    )

    assert proof.conclude(RECIPE).reason == (
        "the gradient of 'weight' differs at step 2 on rank 1 by 5.0e-01, where equal bits are due "
        "(on all ranks)"
    )


def test_the_likeliest_cause_is_that_of_the_discrepancy_that_is_shown() -> None:
    asked: list[Discrepancy] = []

    def find_cause(shown: Discrepancy) -> str:
        asked.append(shown)
        return "a hook"

    named = evidence(0.2, name="weight")
    proof = Proof(check="T0", evidence=[evidence(0.3), named], find_cause=find_cause)

    row = proof.conclude(RECIPE)

    assert asked == [named]
    assert row.reason == (
        "the gradient of 'weight' differs at step 1 by 2.0e-01, over the limit of 1.0e-01 (2 u); "
        "likeliest cause: a hook"
    )


def test_the_cause_of_unequal_weights_is_that_of_weights() -> None:
    proof = Proof(
        check="T0",
        evidence=[evidence(0.2, 0.0, what="parameter", rank=1, formula="on all ranks")],
        find_cause=lambda shown: "a hook",
    )

    assert proof.conclude(RECIPE).reason == (
        "the parameter differs at step 1 on rank 1 by 2.0e-01, where equal bits are due "
        "(on all ranks); likeliest cause: no synchronisation: the ranks step by other "
        "gradients or settings, or not together"
    )


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_what_is_not_finite_is_a_mismatch(error: float) -> None:
    row = Proof(check="T2", evidence=[evidence(0.05), evidence(error)]).conclude(RECIPE)

    assert row.status == "mismatch"
    assert row.error is not None
    assert not math.isfinite(row.error)


def test_planted_bugs_are_flagged_by_the_comparison_of_the_check() -> None:
    expected = {"a": torch.ones(2)}

    def compare(tested: Tensors) -> list[Discrepancy]:
        return judge("gradient", tested, expected, 1, BITWISE)

    proof = Proof(check="T0", planted=dict(FOUND))
    proof.plant(
        [
            Bug("doubled", "", {"a": 2 * torch.ones(2)}),
            Bug("rolled", "", {"a": torch.ones(2).roll(1)}),
        ],
        compare,
    )

    assert proof.planted == {**FOUND, "doubled": True, "rolled": False}


def test_power_counts_what_was_flagged_of_what_was_planted() -> None:
    row = EquivalenceRow.of(RECIPE, "T0", "no power", "", planted=FOUND | MISSED)

    assert row.power == "1/3"
    (told,) = describe_missed(FOUND | MISSED)
    assert told == "it does not find a planted bug: a lost gradient; a shifted gradient"
    assert describe_missed(FOUND) == []
    assert EquivalenceRow.of(RECIPE, "T0", "equivalent", "").power is None
