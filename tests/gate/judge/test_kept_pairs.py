"""What a re-run of the same two trees starts from, and what it does not."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up_pairs import plain_pairs

from perfsuite.gate.arms.arm import Arm
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.kept_pairs import KeptPairs, resume
from perfsuite.gate.judge.trial import Budget, CellPolicy, Trial
from perfsuite.records.verdict import VerdictWord
from perfsuite.stats.evidence import Prior
from perfsuite.stats.sequential import Rule
from perfsuite.system.untrusted import MOST

USUAL = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
RULE = Rule(tolerance=0.02, limit=0.05, num_cells=2, max_pairs=4, prior=Prior(sd=0.01))
OPEN = (0.0, 0.2, 0.0, 0.2)
SLOW = (0.5, 0.501, 0.499, 0.5)


def judged(
    log_ratios: Sequence[float], *, name: str = "a", word: str | None = None, by: str = "pairs"
) -> Trial:
    """A trial whose pairs were judged; `word` is what something else made of it."""
    trial = Trial(name=name, policy=USUAL, rule=RULE, by=by)
    trial.pairs = plain_pairs(log_ratios)
    trial.raw = [(0.001, 0.001 * math.exp(one)) for one in log_ratios]
    trial.firsts = ["base"] * len(log_ratios)
    trial.decide()
    trial.word = word or trial.word or "INCONCLUSIVE"  # type: ignore[assignment]
    return trial


def kept(path: Path, *, base: str = "b1", head: str = "h1") -> KeptPairs:
    return KeptPairs(path / "pairs.json", base, head)


def resumed(path: Path, policy: CellPolicy = USUAL) -> Trial:
    trial = Trial(name="a", policy=policy, rule=Rule(tolerance=0.1, limit=0.1, num_cells=1))
    resume(trial, kept(path).cells["a"])
    return trial


def test_a_change_of_the_mathematics_that_failed_is_kept_as_long_as_it_fails(
    tmp_path: Path,
) -> None:
    failed = judged((0.0, 0.001), word="FAIL", by="numerics")
    failed.numerics_change = "changed: loss at step 4 1 -> 2"
    kept(tmp_path).write([failed])
    strict = dataclasses.replace(USUAL, refuses_numerics_change=True)

    again = resumed(tmp_path, strict)
    assert (again.word, again.numerics_change) == ("FAIL", "changed: loss at step 4 1 -> 2")
    other = resumed(tmp_path)
    assert (other.word, other.numerics_change) == (None, None)


def test_a_failure_is_kept_with_its_numbers_and_says_so(tmp_path: Path) -> None:
    failed = judged(SLOW)
    kept(tmp_path).write([failed])

    trial = resumed(tmp_path)

    assert failed.word == trial.word == "FAIL"
    assert trial.decision == failed.decision
    assert (trial.raw, trial.pairs, trial.firsts) == (failed.raw, failed.pairs, failed.firsts)
    assert trial.reason == "an earlier session of these two trees has failed it"


def test_a_failure_is_kept_of_a_cell_whose_file_has_a_name_that_is_no_text(tmp_path: Path) -> None:
    failed = judged(SLOW, name="test_\udcff.py::test_a")
    failed.add_reason("slower in test_\udcff.py")

    kept(tmp_path).write([failed])

    (found,) = kept(tmp_path).cells.values()
    assert (found.word, found.reason) == ("FAIL", "slower in test_\\udcff.py")
    arm = Arm(name="base", tree=tmp_path, import_roots=(), pytest_arguments=())
    judge_again = judge(
        arm,
        arm,
        {failed.name: USUAL},
        budget=Budget(max_pairs=4, max_s=0.0),
        seed=0,
        priors={},
        kept=kept(tmp_path).cells,
        say=print,
    )
    assert [trial.word for trial in judge_again.trials] == ["FAIL"]


def test_a_failure_by_counts_is_kept_with_its_reason(tmp_path: Path) -> None:
    failed = judged(OPEN, word="FAIL", by="counts")
    failed.reason, failed.failed_counts = "flops 1 -> 2", ("flops",)
    kept(tmp_path).write([failed])

    trial = resumed(tmp_path)

    assert (trial.word, trial.by) == ("FAIL", "counts")
    assert trial.reason == "an earlier session of these two trees has failed it; flops 1 -> 2"
    kept(tmp_path).write([trial])
    assert resumed(tmp_path).reason == trial.reason


def test_a_failure_by_counts_is_open_again_where_its_increase_is_accepted(tmp_path: Path) -> None:
    failed = judged(OPEN, word="FAIL", by="counts")
    failed.failed_counts = "ops", "memory"
    kept(tmp_path).write([failed])

    def allow(*names: str) -> CellPolicy:
        return dataclasses.replace(
            USUAL, accepted_increase=lambda name: 3.0 if name in names else 1
        )

    assert resumed(tmp_path, allow("ops", "memory")).word is None
    again = resumed(tmp_path, allow("loads"))
    assert (again.word, again.failed_counts) == ("FAIL", ("ops", "memory"))
    assert resumed(tmp_path, allow("ops")).word == "FAIL"


@pytest.mark.parametrize("by", ["counts", "pairs"])
def test_a_failure_is_kept_where_an_increase_is_accepted_however_large(
    tmp_path: Path, by: str
) -> None:
    failed = judged(SLOW, word="FAIL", by=by)
    failed.failed_counts = "flops", "memory"
    kept(tmp_path).write([failed])
    any_memory = dataclasses.replace(
        USUAL, accepted_increase=lambda name: math.inf if name == "memory" else 1.0
    )

    kept(tmp_path).write([resumed(tmp_path, any_memory)])

    assert resumed(tmp_path, any_memory).word == "FAIL"
    assert kept(tmp_path).cells["a"].counts == {"flops": 1.0, "memory": float(MOST)}


def test_a_failure_is_open_again_where_the_user_accepts_more(tmp_path: Path) -> None:
    kept(tmp_path).write([judged(SLOW)])

    trial = resumed(tmp_path, dataclasses.replace(USUAL, tolerance=0.8, limit=0.9))

    assert (trial.word, trial.rule.tolerance, trial.rule.limit) == (None, 0.8, 0.9)


def test_the_rule_goes_on_from_inconclusive_pairs(tmp_path: Path) -> None:
    kept(tmp_path).write([judged(OPEN)])

    trial = resumed(tmp_path)

    assert (trial.word, len(trial.pairs)) == (None, 4)
    assert trial.rule == dataclasses.replace(RULE, num_sessions=2)


def test_where_the_time_was_up_the_session_is_finished_first(tmp_path: Path) -> None:
    kept(tmp_path).write([judged(OPEN[:3])])

    assert resumed(tmp_path).rule == RULE


@pytest.mark.parametrize(
    "trial",
    [
        judged((0.0, 0.001)),
        judged((0.0, 0.001), word="INCONCLUSIVE"),  # its pairs would pass it
    ],
    ids=["passed", "open for another reason"],
)
def test_what_pairs_do_not_leave_open_is_judged_anew(tmp_path: Path, trial: Trial) -> None:
    kept(tmp_path).write([judged(OPEN)])

    kept(tmp_path).write([trial])

    assert kept(tmp_path).cells == {}


@pytest.mark.parametrize("word", ["INVALID", "ERROR", "INCONCLUSIVE"])
@pytest.mark.parametrize("earlier", [SLOW, OPEN], ids=["failed", "open"])
def test_a_session_that_says_nothing_of_a_cell_leaves_what_was_kept_of_it(
    tmp_path: Path, earlier: Sequence[float], word: VerdictWord
) -> None:
    kept(tmp_path).write([judged(earlier)])
    before = kept(tmp_path).cells

    kept(tmp_path).write([Trial(name="a", policy=USUAL, rule=RULE, word=word)])

    assert kept(tmp_path).cells == before


def test_pairs_of_a_session_that_measured_the_wrong_code_are_not_kept(tmp_path: Path) -> None:
    kept(tmp_path).write([judged(OPEN, word="INVALID")])

    assert kept(tmp_path).cells == {}


def test_cells_that_a_session_did_not_judge_are_kept(tmp_path: Path) -> None:
    kept(tmp_path).write([judged(SLOW, name="a")])

    kept(tmp_path).write([judged(OPEN, name="b")])

    assert kept(tmp_path).cells.keys() == {"a", "b"}


def test_other_trees_have_pairs_of_their_own_as_long_as_they_are_among_the_last(
    tmp_path: Path,
) -> None:
    for number in range(21):
        kept(tmp_path, head=f"h{number}").write([judged(OPEN)])

    assert kept(tmp_path, head="h0").cells == {}
    assert kept(tmp_path, head="h1").cells.keys() == {"a"}
    assert kept(tmp_path, head="h1", base="b2").cells == {}


def test_each_pair_of_a_session_that_is_ended_counts_and_none_once_its_cell_has_passed(
    tmp_path: Path,
) -> None:
    session, trial = kept(tmp_path), judged((0.0, 0.2))
    trial.word = None
    session.write([trial])

    assert (resumed(tmp_path).word, len(resumed(tmp_path).pairs)) == (None, 2)
    assert resumed(tmp_path).rule == RULE

    session.write([judged((0.0, 0.001))])
    assert kept(tmp_path).cells == {}


def test_without_anything_to_keep_there_is_no_file(tmp_path: Path) -> None:
    kept(tmp_path).write([judged((0.0, 0.001))])

    assert not list(tmp_path.iterdir())


def test_it_says_where_the_pairs_come_from(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    assert kept(tmp_path).describe(["a"]) is None

    kept(tmp_path).write([judged(OPEN)])
    assert kept(tmp_path).describe(["a", "other"]) == (
        f"1 cell goes on from what {path} has of these two trees, with at most 4 pairs a "
        "session as before; remove that file for another number, or if more than the trees has "
        "changed"
    )
    assert kept(tmp_path).describe(["other"]) is None


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"schema": 2}',
        '{"comparisons": [{"base": "b1", "head": "h1", "cells": {"a": {}}}]}',
    ],
)
def test_a_file_that_cannot_be_read_is_judged_anew_and_replaced(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "pairs.json").write_text(content)

    found = kept(tmp_path)

    assert found.cells == {}
    told = found.describe([])
    assert told is not None
    assert told.startswith(f"{tmp_path}/pairs.json cannot be read (")
    assert told.endswith("): judged anew")
    found.write([judged(OPEN)])
    assert kept(tmp_path).cells.keys() == {"a"}


@pytest.mark.parametrize(
    "changes",
    [
        {"raw": [[0.0, 0.001]] * 4},
        {"firsts": ["middle"]},
        {"rule": {"tolerance": 2.0, "limit": 3.0, "num_cells": 1}},
        {"raw": []},
    ],
)
def test_hostile_values_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    kept(tmp_path).write([judged(OPEN)])
    path = tmp_path / "pairs.json"
    file = json.loads(path.read_text())
    file["comparisons"][0]["cells"]["a"] |= changes
    path.write_text(json.dumps(file))

    assert "cannot be read" in str(kept(tmp_path).describe(["a"]))
