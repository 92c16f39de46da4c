"""Why a cell moved, from hand-made launches of both arms."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.explain import explain, explain_stored
from perfsuite.gate.judge.trial import CellPolicy, Trial
from perfsuite.records.cell import Operator
from perfsuite.records.run_file import StoredCell
from perfsuite.records.verdict import Explanation
from perfsuite.stats.sequential import Rule

Profile = tuple[tuple[str, float, float], ...]


def run(record: dict[str, Any] | None = None, profile: Profile = ()) -> CellRun:
    return CellRun(outcome="passed", reason=None, rounds_s=(1.0,), record=record, profile=profile)


def stages(**seconds: float | None) -> CellRun:
    return run({"stages_s": seconds})


def moved(*pairs: tuple[CellRun, CellRun], by_s: float = 0.1, by: str = "pairs") -> Explanation:
    """Of a cell that became slower by so much in these pairs, the last of which is profiled too."""
    policy = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
    rule = Rule(tolerance=0.02, limit=0.05, num_cells=1)
    raw = [(1.0, 1.0 + by_s)] * len(pairs)
    trial = Trial(name="t", policy=policy, rule=rule, by=by, raw=raw)
    if len(pairs) > 1:  # else it failed in an earlier session
        trial.runs = {"base": [base for base, _ in pairs], "head": [head for _, head in pairs]}
    return explain(trial, *pairs[-1])


def names(base: CellRun, head: CellRun, by_s: float = 0.1) -> list[str]:
    return [function["name"] for function in moved((base, head), by_s=by_s).operators]


def test_the_stage_that_moved_most_as_the_cell_did_is_named() -> None:
    pair = (
        stages(load=0.010, forward=0.002, backward=0.003),
        stages(load=0.002, forward=0.006, backward=0.004),
    )

    found = moved(pair, by_s=0.005)

    assert found.moved_stage == "forward"
    assert found.stages.keys() == {"load", "forward", "backward"}
    assert found.stages["forward"] == pytest.approx((0.002, 0.006))
    assert moved(pair, by_s=-0.005).moved_stage == "load"
    assert moved(pair, by_s=0.020).moved_stage is None  # a fifth of it
    assert moved(pair, by_s=0.005, by="counts").moved_stage is None


def test_the_stage_is_that_of_all_pairs_and_not_of_one() -> None:
    even = stages(forward=1.0, optimizer=0.5), stages(forward=1.1, optimizer=0.5)
    odd = stages(forward=1.0, optimizer=0.5), stages(forward=1.1, optimizer=0.9)

    found = moved(even, even, odd)

    assert found.moved_stage == "forward"
    assert found.stages["optimizer"] == (0.5, 0.5)


def test_a_stage_that_an_arm_does_not_know_is_left_out() -> None:
    found = moved(
        (stages(load=0.010, evaluation=None, forward=0.1), stages(load=0.020, evaluation=0.5))
    )

    assert found.stages == {"load": (0.010, 0.020)}


@pytest.mark.parametrize("number", [10**400, -1, float("nan"), float("inf"), "12", [12]])
def test_what_is_no_number_of_anything_is_left_out(number: Any) -> None:
    head = run({"counts": {"flops": number, "ops": 6}, "stages_s": {"load": number}})

    base = run({"counts": {"flops": 10, "ops": 5}, "stages_s": {"load": 0.1}})

    found = moved((base, head))

    assert (found.counts, found.stages) == ({"ops": (5, 6)}, {})


def test_counts_are_listed_where_they_differ() -> None:
    base = run({"counts": {"flops": 10, "ops": 5, "kernel_launches": None}})
    head = run({"counts": {"flops": 12, "ops": 5, "kernel_launches": 3}})

    assert moved((base, head)).counts == {"flops": (10, 12)}


def test_functions_that_became_slower_are_in_the_order_of_by_how_much() -> None:
    base = run(profile=(("a.py:same", 1, 0.5), ("a.py:slow", 2, 0.1), ("a.py:gone", 1, 0.02)))
    head = run(profile=(("a.py:slow", 2, 0.4), ("a.py:same", 1, 0.5), ("a.py:new", 3, 0.05)))

    found = moved((base, head)).operators

    assert found == (
        {"name": "a.py:slow", "calls": (2, 2), "self_s": (0.1, 0.4)},
        {"name": "a.py:new", "calls": (0.0, 3), "self_s": (0.0, 0.05)},
    )


def test_the_operators_of_both_ranks_come_before_functions_of_their_controllers() -> None:
    def ran(self_s: float) -> CellRun:
        operator = {"name": "aten::addmm", "calls": 4, "self_s": self_s}
        return run({"operators": [operator]}, profile=(("wait.py:wait", 1, 10 * self_s),))

    assert names(ran(0.1), ran(0.2)) == ["aten::addmm"]
    assert names(ran(0.1), run(profile=(("wait.py:wait", 1, 2.0),))) == ["wait.py:wait"]


def test_functions_of_the_ranks_are_named_where_no_operator_explains_the_change() -> None:
    def ran(multiplied_s: float, cropped_s: float | None) -> CellRun:
        parts = {
            "aten::mm": multiplied_s,
            "Torch-Compiled Region: 0/0": 0.001,
            "data.py:crop": cropped_s,
            "train:step": 2 * multiplied_s,
            "<built-in method time.sleep>": 0.01,
        }
        operators = [
            {"name": name, "calls": 1, "self_s": s} for name, s in parts.items() if s is not None
        ]
        return run({"operators": operators}, profile=(("wait.py:wait", 1, 10 * multiplied_s),))

    assert names(ran(0.1, 0.1), ran(0.1, 0.2)) == ["data.py:crop"]
    assert names(ran(0.1, 0.1), ran(0.2, 0.1)) == ["aten::mm"]
    assert names(ran(0.1, 0.1), ran(0.101, 0.101)) == []
    found = moved((ran(0.1, None), ran(0.1, 0.2))).operators
    assert found == ({"name": "data.py:crop", "calls": (None, 1), "self_s": (None, 0.2)},)


def test_ten_functions_are_listed_at_most() -> None:
    base = run(profile=tuple((f"a.py:f{number}", 1, 0.1) for number in range(20)))
    head = run(profile=tuple((f"a.py:f{number}", 1, 0.1 + number) for number in range(20)))

    # The first moved by 19 of 190, too little to explain anything: without the others it is all.
    assert names(base, head) == []
    large = run(profile=(("a.py:large", 1, 1000.0), *head.profile))
    assert len(names(base, large)) == 10


def test_where_no_function_moved_enough_by_itself_none_is_named() -> None:
    base = run(profile=tuple((f"a.py:f{number}", 1, 0.1) for number in range(4)))
    head = run(profile=tuple((f"a.py:f{number}", 1, 0.2) for number in range(4)))

    assert names(base, head) == []  # a quarter each


def test_a_function_that_moved_by_a_trifle_of_the_cells_change_is_not_named() -> None:
    base, head = run(profile=(("a.py:f", 9, 3e-6),)), run(profile=(("a.py:f", 9, 7e-6),))

    assert names(base, head, by_s=0.001) == []
    assert names(base, head, by_s=1e-6) == ["a.py:f"]
    assert names(head, base, by_s=1e-6) == []


def test_without_records_and_profiles_nothing_is_claimed() -> None:
    found = moved((run(), run({"stages_s": "broken", "counts": None})))

    assert (found.moved_stage, found.stages, found.counts, found.operators) == (None, {}, {}, ())


def stored(*operators: tuple[str, int, float], median_s: float = 1.0) -> StoredCell:
    kept = tuple(Operator(name=name, calls=calls, self_s=own) for name, calls, own in operators)
    return StoredCell(median_s=median_s, operators=kept or None)


def test_stored_operators_that_became_slower_are_listed_what_moved_most_first() -> None:
    base = stored(("aten::mm", 4, 0.5), ("aten::add", 9, 0.1), ("aten::mul", 1, 0.05))
    now = ("aten::mm", 4, 0.5), ("aten::add", 18, 0.2), ("aten::sin", 2, 0.3)
    head = stored(*now, median_s=1.4)

    assert explain_stored(base, head).operators == (
        {"name": "aten::sin", "calls": (None, 2), "self_s": (None, 0.3)},
        {"name": "aten::add", "calls": (9, 18), "self_s": (0.1, 0.2)},
    )


def test_runs_from_before_operators_were_kept_have_none() -> None:
    assert explain_stored(stored(), stored()).operators == ()
    assert (
        explain_stored(stored(("aten::mm", 4, 0.5)), stored(("aten::mm", 4, 0.5))).operators == ()
    )
