"""What verdicts end a session in, and what of them a record keeps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.records.verdict import (
    SEVERITY,
    CellVerdict,
    Verdict,
    VerdictWord,
    exit_code,
    most_severe,
)

CODES = {
    "ERROR": 1,
    "FAIL": 10,
    "NO-BASELINE": 12,
    "VANISHED": 12,
    "INVALID": 12,
    "INCONCLUSIVE": 11,
    "PASS": 0,
    "IMPROVED": 0,
}
NOTHING = ("NEW", "SKIPPED")
FROM_GRAVEST = (1, 10, 12, 11, 0)
# A signal, then pytest's own, then the verdicts'.
EXIT_CODES_FROM_MOST_SEVERE = (143, 3, 4, 2, 1, 10, 12, 11, 13, 5, 0)

words = st.lists(st.sampled_from([*CODES, *NOTHING]))


def test_every_word_has_its_severity() -> None:
    assert set(SEVERITY) == set(get_args(VerdictWord)) == {*CODES, *NOTHING}


@pytest.mark.parametrize(("word", "code"), [*CODES.items(), ("NEW", 13), ("SKIPPED", 13)])
def test_each_verdict_alone_has_its_exit_code(word: str, code: int) -> None:
    assert exit_code([word]) == code


@pytest.mark.parametrize("found", [[], ["NEW"], ["NEW", "SKIPPED", "NEW"]])
def test_where_nothing_was_compared_the_code_is_13(found: list[str]) -> None:
    assert exit_code(found) == 13


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (["FAIL", "ERROR", "INVALID", "INCONCLUSIVE", "PASS"], 1),
        (["PASS", "INVALID", "FAIL", "INCONCLUSIVE", "VANISHED"], 10),
        (["INCONCLUSIVE", "VANISHED", "PASS"], 12),
        (["INCONCLUSIVE", "PASS", "NEW"], 11),
        (["NEW", "PASS", "SKIPPED"], 0),
        (["VANISHED", "NEW"], 12),
    ],
)
def test_of_several_verdicts_the_most_severe_decides(found: list[str], code: int) -> None:
    assert exit_code(found) == code


@given(found=words)
def test_new_and_skipped_cells_never_change_what_the_others_end_in(found: list[str]) -> None:
    judged = [word for word in found if word not in NOTHING]
    codes = {CODES[word] for word in judged}

    expected = next((code for code in FROM_GRAVEST if code in codes), 13)

    assert exit_code(found) == expected
    assert exit_code(word for word in found) == expected


@pytest.mark.parametrize(("more_severe", "code"), list(pairwise(EXIT_CODES_FROM_MOST_SEVERE)))
def test_of_the_ranks_of_a_session_the_most_severe_code_decides(
    more_severe: int, code: int
) -> None:
    assert most_severe([more_severe, code]) == most_severe([code, more_severe]) == more_severe


def test_a_record_keeps_the_numbers_of_a_verdict() -> None:
    cell = CellVerdict(
        name="a",
        word="FAIL",
        by="pairs",
        ratio=1.1,
        mean_ratio=1.4,
        interval=(1.05, 1.15),
        num_pairs=4,
        detectable=0.03,
        tolerance=0.01,
        limit=0.04,
    )

    assert cell.as_record() == Verdict(
        word="FAIL",
        by="pairs",
        ratio=1.1,
        mean_ratio=1.4,
        interval=(1.05, 1.15),
        num_pairs=4,
        detectable=0.03,
        tolerance=0.01,
        limit=0.04,
    )


def test_a_record_of_what_was_not_compared_has_no_numbers() -> None:
    cell = CellVerdict(name="a", word="NEW", by="collection", reason="the base has no such cell")

    assert cell.as_record() == Verdict(
        word="NEW", by="collection", ratio=None, interval=None, num_pairs=0, detectable=None
    )


@pytest.mark.parametrize(
    ("interval", "detectable"),
    [((0.0, math.inf), math.inf), ((1e-285, 2.1), 1e285), ((0.5, 1e285), 0.5)],
)
def test_a_record_holds_no_bound_that_bounds_nothing(
    interval: tuple[float, float], detectable: float
) -> None:
    cell = CellVerdict(
        name="a",
        word="INCONCLUSIVE",
        by="pairs",
        ratio=1.1,
        interval=interval,
        num_pairs=1,
        detectable=detectable,
    )

    assert cell.as_record() == Verdict(
        word="INCONCLUSIVE", by="pairs", ratio=1.1, interval=None, num_pairs=1, detectable=None
    )
