"""Which claims are tested, and what becomes of an experiment that cannot be, or that breaks."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_cells import MadeUpSession

from perfsuite.errors import NotExercisedError, SettingError, WorkloadError
from perfsuite.experiments.claims.catalogue import CLAIMS, choose_claims, try_claims
from perfsuite.experiments.claims.claim import Claim, ClaimFinding
from perfsuite.experiments.interleave import Bench

HOLDS = ClaimFinding(status="holds", figures={"ratio": 0.5}, reason="counted")


def make_claim(name: str, outcome: ClaimFinding | Exception) -> Claim:
    def experiment(bench: Bench) -> ClaimFinding:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return Claim(id=name, text="is so", quoted="0.5", source="S1", experiment=experiment)


@pytest.fixture
def bench() -> Bench:
    session: Any = MadeUpSession(lambda workload, recipe, activity: pytest.fail("measured"))
    return Bench(session=session, seed=1, say=lambda line: None)


def test_all_fourteen_claims_are_there_in_order() -> None:
    assert [claim.id for claim in CLAIMS] == [f"C{number}" for number in range(1, 15)]


def test_without_a_choice_all_are_tested_and_a_choice_keeps_the_order() -> None:
    assert choose_claims([]) == CLAIMS
    assert [claim.id for claim in choose_claims(["c14", "C5, C8"])] == ["C5", "C8", "C14"]


def test_an_unknown_claim_is_a_setting_error() -> None:
    with pytest.raises(SettingError) as refused:
        choose_claims(["C5,C99"])

    names = ", ".join(f"C{number}" for number in range(1, 15))
    assert str(refused.value) == f"--only names 'C99'; use one of {names}"


def test_what_the_machine_cannot_exercise_cannot_be_tested_here(bench: Bench) -> None:
    claim = make_claim("C4", NotExercisedError("it needs 2 GPUs"))

    ((_, finding),) = try_claims([claim], bench)

    assert not finding.is_broken
    assert finding.status == "cannot be tested here"
    assert finding.reason == "it needs 2 GPUs"


def test_an_experiment_that_breaks_is_reported_and_the_others_go_on(bench: Bench) -> None:
    claims = [make_claim("C1", WorkloadError("no data")), make_claim("C2", HOLDS)]

    (first, broken), (second, whole) = try_claims(claims, bench)

    assert broken.is_broken
    assert broken.reason == "the experiment broke: no data"
    assert (whole.is_broken, whole) == (False, HOLDS)
    assert [first.id, second.id] == ["C1", "C2"]
