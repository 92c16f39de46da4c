"""Verdicts as people read them: the table's rows, the lines below it, and the sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from perfsuite.records.verdict import CellVerdict, Explanation
from perfsuite.report.summary import verdict_sentence
from perfsuite.report.terminal.gate import verdict_lines
from perfsuite.units import format_change


def cell(word: str = "PASS", **changes: Any) -> CellVerdict:
    numbers = {"ratio": 1.004, "interval": (0.99, 1.016), "num_pairs": 4, "detectable": 0.031}
    return CellVerdict(**({"name": "b.py::t", "word": word, "by": "pairs"} | numbers | changes))


def uncompared(word: str, reason: str | None) -> CellVerdict:
    return CellVerdict(name="b.py::t", word=word, by="collection", reason=reason)


def explained(**changes: Any) -> Explanation:
    nothing: dict[str, Any] = {"moved_stage": None, "stages": {}, "counts": {}, "operators": ()}
    return Explanation(**(nothing | changes))


def rows(table: str) -> list[list[str]]:
    """The cells of the rows, split where two blanks are; the header first."""
    lines = [" ".join(line.split()) for line in table.splitlines() if line.strip()]
    return [line.split(" ") for line in lines if not set(line) <= set("─ ")]


def verdict_table(cells: Sequence[CellVerdict]) -> str:
    return next(verdict_lines(cells, None, {}))


# --- the table ---


def test_each_cell_has_a_row_with_its_change_interval_and_pairs() -> None:
    table = verdict_table([cell("FAIL", ratio=1.1, interval=(1.05, 1.15)), cell()])

    assert [" ".join(row) for row in rows(table)] == [
        "cell verdict change between pairs",
        "b.py::t FAIL +10.0 % +5.0 % and +15.0 % 4",
        "b.py::t PASS +0.4 % -1.0 % and +1.6 % 4",
    ]


def test_a_cell_that_was_not_compared_has_its_word_alone() -> None:
    assert rows(verdict_table([uncompared("NEW", "the base has no such cell")]))[1:] == [
        ["b.py::t", "NEW"]
    ]


def test_one_pair_has_a_change_and_no_interval() -> None:
    single = cell("INCONCLUSIVE", num_pairs=1, interval=(0.0, math.inf))

    assert " ".join(rows(verdict_table([single]))[1]) == "b.py::t INCONCLUSIVE +0.4 % 1"


def test_a_long_name_is_whole() -> None:
    name = f"benchmarks/test_it.py::test_it[{'x' * 200}]"

    assert name in verdict_table([cell(name=name)])


def test_a_name_that_looks_like_markup_stays_as_it_is() -> None:
    name = "b.py::t[bold red]"

    assert name in verdict_table([cell(name=name)])


# --- the lines ---


def test_what_differs_comes_first_and_reasons_below_the_table() -> None:
    cells = [cell(), uncompared("VANISHED", "head has no such cell")]

    lines = list(verdict_lines(cells, None, {"head": "main at 1a2b3c4", "base": "HEAD~1"}))

    assert lines == [
        "head: main at 1a2b3c4",
        "base: HEAD~1",
        verdict_table(cells),
        "b.py::t: head has no such cell",
    ]


def test_what_holds_for_many_cells_is_said_once() -> None:
    names = [f"b.py::t{number}" for number in range(5)]
    cells = [cell(name=name, reason="data of an earlier run") for name in names]

    *_, last = verdict_lines([*cells, cell()], None, {})

    assert last == "b.py::t0, b.py::t1, b.py::t2 and 2 more: data of an earlier run"


def test_the_last_line_says_how_a_slowdown_or_a_count_that_is_meant_is_accepted() -> None:
    told = (
        "if a FAIL is meant: perfsuite baseline accept CELL --slowdown RATIO, or --increase COUNT"
    )

    assert [*verdict_lines([cell("FAIL"), cell()], None, {})][-1] == told
    assert [*verdict_lines([cell(), cell("FAIL", by="counts")], None, {})][-1] == told
    for failed in (cell(), cell("FAIL", by="numerics"), cell("FAIL", policy="quarantined")):
        assert told not in verdict_lines([failed], None, {})


def test_a_refusal_says_why_and_shows_no_table() -> None:
    assert list(verdict_lines([], "there is no base", {"head": "a folder"})) == [
        "head: a folder",
        "not compared: there is no base",
    ]


# --- the sentence ---


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (cell(), "PASS: +0.4 % against the base, between -1.0 % and +1.6 % (4 pairs)"),
        (uncompared("NEW", "the base has no such cell"), "NEW; the base has no such cell"),
        (uncompared("INVALID", None), "INVALID"),
        (
            cell("FAIL", policy="quarantined"),
            "FAIL quarantined: +0.4 % against the base, between -1.0 % and +1.6 % (4 pairs)",
        ),
        (
            cell("INCONCLUSIVE", interval=(0.97, 1.06)),
            "INCONCLUSIVE: +0.4 % against the base, between -3.0 % and +6.0 % (4 pairs); "
            "the smallest slowdown that it could have seen is +3.1 %",
        ),
        (
            cell("INCONCLUSIVE", ratio=2.6, interval=(2.18, 2.8)),
            "INCONCLUSIVE: +160.0 % against the base, between +118.0 % and +180.0 % (4 pairs); "
            "so few pairs are no FAIL, wherever their bounds lie",
        ),
        (
            cell("INCONCLUSIVE", num_pairs=1, interval=(0.0, math.inf), detectable=1e166),
            "INCONCLUSIVE; no slowdown could be seen in so few pairs",
        ),
        (
            cell(
                "FAIL",
                reason="ops 2 -> 3 (+50.0 %), allowed 0 %",
                explanation=explained(counts={"flops": (4, 6), "ops": (2, 3)}),
            ),
            "FAIL: +0.4 % against the base, between -1.0 % and +1.6 % (4 pairs); "
            "ops 2 -> 3 (+50.0 %), allowed 0 %; counts: flops 4 -> 6",
        ),
        (
            cell(
                "FAIL",
                reason="ops 2 -> 3 (+50.0 %), allowed 0 %",
                explanation=explained(counts={"ops": (2, 3)}),
            ),
            "FAIL: +0.4 % against the base, between -1.0 % and +1.6 % (4 pairs); "
            "ops 2 -> 3 (+50.0 %), allowed 0 %",
        ),
        (
            cell("INCONCLUSIVE", num_pairs=1, interval=(0.0, math.inf), detectable=math.inf),
            "INCONCLUSIVE",
        ),
        (
            cell(reason="slower by 4 us an iteration, below the floor of 50 us"),
            "PASS: +0.4 % against the base, between -1.0 % and +1.6 % (4 pairs); "
            "slower by 4 us an iteration, below the floor of 50 us",
        ),
    ],
)
def test_a_verdict_is_one_sentence(verdict: CellVerdict, text: str) -> None:
    assert verdict_sentence(verdict) == text


FAILED = "FAIL: +10.0 % against the base, between +5.0 % and +15.0 % (4 pairs)"


@pytest.mark.parametrize(
    ("explanation", "text"),
    [
        (
            explained(moved_stage="backward", stages={"backward": (0.002, 0.003)}),
            "moved most: backward 2.00 ms -> 3.00 ms (+50.0 %)",
        ),
        (
            explained(
                moved_stage="other",
                stages={"other": (0.002, 0.006)},
                operators=({"name": "aten::mm", "calls": (1, 2), "self_s": (0.001, 0.004)},),
            ),
            "moved most: aten::mm 1.00 ms -> 4.00 ms (+300.0 %), profiled once",
        ),
        (
            explained(moved_stage="other", stages={"other": (0.002, 0.003)}),
            "moved most: other 2.00 ms -> 3.00 ms (+50.0 %)",
        ),
        (
            explained(
                operators=({"name": "a.py:slow", "calls": (1, 1), "self_s": (0.0, 0.003)},),
            ),
            "moved most: a.py:slow 0 s -> 3.00 ms, profiled once",
        ),
        (
            explained(
                operators=({"name": "aten::mm", "calls": (None, 1), "self_s": (None, 0.003)},)
            ),
            "moved most: aten::mm 3.00 ms in head alone, profiled once",
        ),
        (
            explained(
                operators=({"name": "aten::mm", "calls": (1, None), "self_s": (0.003, None)},)
            ),
            "moved most: aten::mm 3.00 ms in base alone, profiled once",
        ),
        (
            explained(counts={"flops": (10, 12), "ops": (3, 4)}),
            "counts: flops 10 -> 12, ops 3 -> 4",
        ),
        (explained(), "no stage, count or function moved by itself"),
    ],
)
def test_what_moved_is_part_of_the_sentence(explanation: Explanation, text: str) -> None:
    verdict = cell("FAIL", ratio=1.1, interval=(1.05, 1.15), explanation=explanation)

    assert verdict_sentence(verdict) == f"{FAILED}; {text}"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "+0.0 %"), (1.05, "+5.0 %"), (0.5, "-50.0 %"), (0.0, "-100.0 %"), (math.inf, "any")],
)
def test_a_change_has_its_sign(ratio: float, text: str) -> None:
    assert format_change(ratio) == text
