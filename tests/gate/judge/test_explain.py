"""Why a cell moved, from hand-made launches of both arms."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.explain import explain, explain_stored
from perfsuite.records.cell import Operator
from perfsuite.records.run_file import StoredCell

Profile = tuple[tuple[str, float, float], ...]


def run(record: dict[str, Any] | None = None, profile: Profile = ()) -> CellRun:
    return CellRun(outcome="passed", reason=None, rounds_s=(1.0,), record=record, profile=profile)


def stages(**seconds: float | None) -> CellRun:
    return run({"stages_s": seconds})


def names(*runs: CellRun) -> list[str]:
    return [function["name"] for function in explain(*runs).operators]


def test_the_stage_that_changed_most_is_named() -> None:
    found = explain(
        stages(load=0.010, forward=0.002, backward=0.003),
        stages(load=0.011, forward=0.006, backward=0.003),
    )

    assert found.moved_stage == "forward"
    assert found.stages == {
        "load": (0.010, 0.011),
        "forward": (0.002, 0.006),
        "backward": (0.003, 0.003),
    }


def test_a_stage_that_became_faster_counts_as_much() -> None:
    found = explain(stages(load=0.010, forward=0.002), stages(load=0.001, forward=0.003))

    assert found.moved_stage == "load"


def test_a_stage_that_an_arm_does_not_know_is_left_out() -> None:
    found = explain(
        stages(load=0.010, evaluation=None, forward=0.1), stages(load=0.020, evaluation=0.5)
    )

    assert found.stages == {"load": (0.010, 0.020)}


@pytest.mark.parametrize("number", [10**400, -1, float("nan"), float("inf"), "12", [12]])
def test_what_is_no_number_of_anything_is_left_out(number: Any) -> None:
    head = run({"counts": {"flops": number, "ops": 6}, "stages_s": {"load": number}})

    found = explain(run({"counts": {"flops": 10, "ops": 5}, "stages_s": {"load": 0.1}}), head)

    assert (found.counts, found.stages) == ({"ops": (5, 6)}, {})


def test_counts_are_listed_where_they_differ() -> None:
    base = run({"counts": {"flops": 10, "ops": 5, "kernel_launches": None}})
    head = run({"counts": {"flops": 12, "ops": 5, "kernel_launches": 3}})

    assert explain(base, head).counts == {"flops": (10, 12)}


def test_functions_are_in_the_order_of_what_they_moved_by() -> None:
    base = run(profile=(("a.py:same", 1, 0.5), ("a.py:slow", 2, 0.1), ("a.py:gone", 1, 0.02)))
    head = run(profile=(("a.py:slow", 2, 0.4), ("a.py:same", 1, 0.5), ("a.py:new", 3, 0.05)))

    found = explain(base, head).operators

    assert found[:3] == (
        {"name": "a.py:slow", "calls": (2, 2), "self_s": (0.1, 0.4)},
        {"name": "a.py:new", "calls": (0.0, 3), "self_s": (0.0, 0.05)},
        {"name": "a.py:gone", "calls": (1, 0.0), "self_s": (0.02, 0.0)},
    )


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


def test_without_records_and_profiles_nothing_is_claimed() -> None:
    found = explain(run(), run({"stages_s": "broken", "counts": None}))

    assert (found.moved_stage, found.stages, found.counts, found.operators) == (None, {}, {}, ())


def stored(*operators: tuple[str, int, float]) -> StoredCell:
    kept = tuple(Operator(name=name, calls=calls, self_s=own) for name, calls, own in operators)
    return StoredCell(median_s=1.0, params={}, operators=kept or None)


def test_stored_operators_that_differ_are_listed_what_moved_most_first() -> None:
    base = stored(("aten::mm", 4, 0.5), ("aten::add", 9, 0.1), ("aten::mul", 1, 0.05))
    head = stored(("aten::mm", 4, 0.5), ("aten::add", 18, 0.2), ("aten::sin", 2, 0.3))

    assert explain_stored(base, head).operators == (
        {"name": "aten::sin", "calls": (None, 2), "self_s": (None, 0.3)},
        {"name": "aten::add", "calls": (9, 18), "self_s": (0.1, 0.2)},
        {"name": "aten::mul", "calls": (1, None), "self_s": (0.05, None)},
    )


def test_runs_from_before_operators_were_kept_have_none() -> None:
    assert explain_stored(stored(), stored()).operators == ()
    assert (
        explain_stored(stored(("aten::mm", 4, 0.5)), stored(("aten::mm", 4, 0.5))).operators == ()
    )
