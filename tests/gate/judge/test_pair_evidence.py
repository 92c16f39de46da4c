"""What a pair says of a command that logs its steps itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.pair_evidence import (
    describe_beside,
    why_logs_differ,
    why_steps_differ,
)

TOLD = (
    "beside its timed steps, which alone are judged, the command took 9 s with head and 3 s with "
    "the base"
)


def run(beside_s: float, **others: Any) -> CellRun:
    """A command whose ten timed steps took a second, and the rest so long."""
    fields: dict[str, Any] = {"rounds_s": (0.1,) * 10, "record": {}, "turns_s": 1.0 + beside_s}
    return CellRun(outcome="passed", reason=None, **{**fields, **others})


@pytest.mark.parametrize(
    ("base_s", "head_s", "expected"),
    [
        ([3.0, 3.0], [9.0, 9.0], TOLD),
        ([2.0, 3.0, 4.0], [9.0, 8.0, 9.5], TOLD),
        ([3.0, 3.0], [9.0, 3.1], None),  # in one pair of two
        ([3.0, 3.0], [3.5, 3.5], None),  # as much varies
        ([9.0, 9.0], [3.0, 3.0], None),
        ([0.1, 0.1], [0.14, 0.14], None),  # less than the limit of the steps
        ([3.0], [9.0], None),  # the first pair has cold caches
        ([-9.0, -9.0], [-3.0, -3.0], None),  # the log sums up to more than the time that went by
    ],
)
def test_what_a_command_does_beside_its_steps_is_told_where_each_pair_has_it(
    base_s: list[float], head_s: list[float], expected: str | None
) -> None:
    base, head = ([run(beside_s) for beside_s in arm] for arm in (base_s, head_s))

    assert describe_beside(base, head, limit=0.05) == expected


@pytest.mark.parametrize("others", [{"record": None}, {"alternated_s": 2.0}])
def test_nothing_is_told_of_cells_whose_turns_are_timed_round_by_round(
    others: dict[str, Any],
) -> None:
    base, head = (dataclasses.replace(run(beside_s), **others) for beside_s in (3.0, 9.0))

    assert describe_beside([base] * 2, [head] * 2, limit=0.05) is None


def test_what_is_accepted_of_the_steps_is_accepted_of_those_that_are_not_timed() -> None:
    base, head = run(10.0), run(13.0)

    assert describe_beside([base] * 2, [head] * 2, limit=0.37) is None
    assert describe_beside([base] * 2, [head] * 2, limit=0.05) is not None


@pytest.mark.parametrize(
    ("base", "head", "differ"),
    [
        ([30, 30], [60, 60], True),
        ([60, 60], [30, 30], True),
        ([30, 30], [30, 30], False),
        ([30], [60], False),  # one pair may have been unlucky
        ([30, 31], [60, 60], False),  # by a clock, or until a loss is reached
        ([30, 30], [27, 28], False),
        ([None, None], [None, None], False),  # no command logs anything
    ],
)
def test_a_command_that_logs_more_steps_or_fewer_in_each_launch_may_log_other_ones(
    base: list[int | None], head: list[int | None], differ: bool
) -> None:
    ours, theirs = ([run(0.0, num_logged=number) for number in arm] for arm in (base, head))

    told = f"the command logs {head[0]} step times with head and {base[0]} with the base, so that "
    assert str(why_logs_differ(ours, theirs)).startswith(told) == differ


@pytest.mark.parametrize(
    ("base", "head", "differ"),
    [
        ([0.98, 0.98], [0.18, 0.18], True),
        ([0.2, 0.2], [1.0, 1.0], True),
        ([0.2, 0.2], [0.1, 0.1], True),
        ([0.2, 0.2], [0.0, 0.0], True),
        ([0.98, 1.0], [1.0, 0.98], False),  # where the loop ends
        ([0.0, 0.0], [0.98, 1.0], False),  # one optimizer more, which steps as often
        ([2.0, 2.0], [0.0, 0.0], False),
        ([0.2, 0.22], [0.18, 0.2], False),
    ],
)
def test_steps_that_a_further_optimizer_takes_part_in_more_rarely_are_other_ones(
    base: list[float], head: list[float], differ: bool
) -> None:
    theirs, ours = ([run(0.0, others_per_step=rate) for rate in arm] for arm in (base, head))

    assert (why_steps_differ(theirs, ours) is not None) == differ
