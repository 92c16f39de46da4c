"""Two cells through the paired rule: what its words mean together, and what it is asked."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from made_up_cells import MadeUpSession, make_outcome, make_record
from made_up_pairs import plain_pairs

from perfsuite.errors import WorkloadError
from perfsuite.experiments import compare as compare_module
from perfsuite.experiments.compare import ComparisonRequest, compare, weigh
from perfsuite.experiments.compared_cell import CELL_VARIABLE
from perfsuite.experiments.interleave import Bench, Cell
from perfsuite.gate.arms.arm import Arm, CellRun
from perfsuite.gate.judge.trial import Budget, CellPolicy, Judgement, Trial
from perfsuite.records.recipe import Recipe
from perfsuite.stats.sequential import Decision, Rule, decide

A = Cell(workload="toy-mlp", recipe=Recipe())
B = Cell(workload="toy-mlp", recipe=Recipe(precision="amp-bf16"))
BUDGET = Budget(max_pairs=8, max_s=60.0, timeout_s=60.0)
REQUEST = ComparisonRequest(a=A, b=B, budget=BUDGET)


def decision(word: str | None, low: float, high: float) -> Decision:
    return Decision(
        word=word,  # type: ignore[arg-type]
        ratio=1.0,
        mean_ratio=1.0,
        mean_differs=False,
        interval=(low, high),
        num_pairs=4,
        detectable=0.03,
    )


class MadeUpJudge:
    """Takes each pair's ratio of head to base from `ratio(base, head)`, and applies the rule."""

    def __init__(self, ratios: Callable[[dict[str, Any], dict[str, Any]], list[float]]) -> None:
        self.arms: list[tuple[Arm, Arm]] = []
        self.policies: list[CellPolicy] = []
        self.word: str | None = None
        self.said: list[str] = []
        self._ratios = ratios

    def __call__(
        self,
        base: Arm,
        head: Arm,
        policies: Mapping[str, CellPolicy],
        *,
        budget: Budget,
        say: Callable[[str], None],
        **_: Any,
    ) -> Judgement:
        ((name, asked),) = policies.items()
        say("pair 2: 0 of 1 cell decided (9 s)")
        say(f"  {name}: FAIL, +20.0 %")
        self.arms.append((base, head))
        self.policies.append(asked)
        cells = [json.loads(arm.environment[CELL_VARIABLE]) for arm in (base, head)]
        base_samples, head_samples = asked.num_samples
        rule = Rule(
            tolerance=asked.tolerance, limit=asked.limit, num_cells=1, max_pairs=budget.max_pairs
        )
        trial = Trial(name=name, policy=asked, rule=rule)
        trial.raw = [
            (0.002 / base_samples, 0.002 * ratio / head_samples) for ratio in self._ratios(*cells)
        ]
        trial.pairs = plain_pairs(math.log(head_s / base_s) for base_s, head_s in trial.raw)
        trial.decision = decide(trial.pairs, rule)
        trial.word = self.word or trial.decision.word or "INCONCLUSIVE"
        trial.reason = "the arm broke" if self.word else None
        for arm in ("base", "head"):
            trained = msgspec.to_builtins(make_record())
            trial.runs[arm] = [
                CellRun(outcome="passed", reason=None, rounds_s=(0.002,), record=trained)
            ]
        return Judgement(trials=(trial,), num_pairs=len(trial.raw), wall_s=2.0)


def session_of(samples: Callable[[Recipe], int] = lambda recipe: 32) -> MadeUpSession:
    return MadeUpSession(
        lambda workload, recipe, activity: make_outcome([0.002], num_samples=samples(recipe))
    )


def run(judge: MadeUpJudge, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    monkeypatch.setattr(compare_module, "judge", judge)
    session = changes.pop("session", session_of())
    request = ComparisonRequest(**({"a": A, "b": B, "budget": BUDGET} | changes))
    return compare(Bench(session=session, seed=5, say=judge.said.append), request)


# --- words ---


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (decision("FAIL", 1.1, 1.3), None, ("slower", (1.1, 1.3))),
        (decision("IMPROVED", 0.8, 0.9), None, ("faster", (0.8, 0.9))),
        (decision("INCONCLUSIVE", 0.9, 1.2), None, ("undecided", (0.9, 1.2))),
        (decision(None, 0.0, math.inf), None, ("undecided", (0.0, math.inf))),
        (decision("PASS", 0.5, 1.04), decision("PASS", 0.5, 1.25), ("same", (0.8, 1.04))),
        (decision("PASS", 0.5, 1.04), decision("FAIL", 1.25, 2.0), ("faster", (0.5, 0.8))),
        (decision("PASS", 0.5, 1.04), decision("IMPROVED", 0.5, 0.8), ("slower", (1.25, 2.0))),
        (
            decision("PASS", 0.5, 1.04),
            decision("INCONCLUSIVE", 0.5, 1.25),
            ("undecided", (0.8, 1.04)),
        ),
    ],
)
def test_the_word_follows_from_both_directions(
    forward: Decision, backward: Decision | None, expected: tuple[str, tuple[float, float]]
) -> None:
    assert weigh(forward, backward) == expected


def test_b_that_takes_longer_is_slower_by_what_the_pairs_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = MadeUpJudge(lambda base, head: [1.21, 1.2, 1.19] * 2)

    found = run(judge, monkeypatch)

    assert found.word == "slower"
    assert found.ratio == pytest.approx(1.2, rel=1e-3)
    assert found.interval[0] < 1.2 < found.interval[1]
    assert found.wall_s == 2.0
    assert len(judge.arms) == 1
    assert judge.said == ["pair 2: 0 of 1 cell decided (9 s)"]  # and no word of the gate


def test_equal_cells_are_the_same_within_a_margin_on_the_same_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = MadeUpJudge(lambda base, head: [1.001, 0.999, 1.0])

    found = run(judge, monkeypatch)

    assert found.word == "same"
    low, high = found.interval
    assert 0 < max(high - 1, 1 - low) < 0.05
    assert len(judge.arms) == 1


def test_where_the_pairs_prove_one_side_alone_further_ones_are_run_the_other_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ratios(base: dict[str, Any], head: dict[str, Any]) -> list[float]:
        is_forward = head["recipe"]["precision"] == "amp-bf16"
        return [0.95, 0.97, 0.96] if is_forward else [1.05] * 6

    judge = MadeUpJudge(ratios)

    found = run(judge, monkeypatch)

    assert found.word == "faster"
    assert len(judge.arms) == 2
    assert [round(b_s / a_s, 3) for a_s, b_s in found.raw] == [0.95, 0.97, 0.96, *[0.952] * 6]
    assert found.wall_s == 4.0


# --- what is asked ---


def test_both_arms_are_this_folder_and_differ_by_the_cell_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = MadeUpJudge(lambda base, head: [1.2] * 3)

    run(judge, monkeypatch)

    ((base, head),) = judge.arms
    assert (base.tree, base.python) == (head.tree, head.python)
    assert base.pytest_arguments == head.pytest_arguments
    assert json.loads(base.environment[CELL_VARIABLE])["recipe"] == A.recipe.as_dict()
    assert json.loads(head.environment[CELL_VARIABLE])["recipe"] == B.recipe.as_dict()
    assert (judge.policies[0].tolerance, judge.policies[0].limit) == (0.02, 0.05)


def test_an_iteration_of_twice_the_samples_may_take_twice_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = MadeUpJudge(lambda base, head: [2.002, 1.998, 2.0])
    session = session_of(lambda recipe: 64 if recipe.precision == "amp-bf16" else 32)

    found = run(judge, monkeypatch, session=session)

    assert found.word == "same"
    assert found.ratio == pytest.approx(1.0, abs=1e-3)
    assert found.raw[0] == pytest.approx((0.002 / 32, 0.004004 / 64))
    assert judge.policies[0].num_samples == (32, 64)
    assert judge.policies[0].accepted_slowdown == 1.0
    assert found.num_samples == {"a": 32, "b": 64}


def test_the_machine_is_held_while_pairs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of()

    run(MadeUpJudge(lambda base, head: [1.2] * 3), monkeypatch, session=session)

    assert session.holds_machine


def test_an_arm_that_breaks_is_an_error_that_names_both_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = MadeUpJudge(lambda base, head: [1.0] * 3)
    judge.word = "ERROR"

    with pytest.raises(WorkloadError) as refused:
        run(judge, monkeypatch)

    assert str(refused.value) == (
        "toy-mlp under the default recipe (base) and toy-mlp under precision=amp-bf16 (head) "
        "cannot be compared: the arm broke"
    )


@pytest.mark.slow
def test_the_cell_that_arms_run_is_there_and_reads_its_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = MadeUpJudge(lambda base, head: [1.2] * 3)
    recipe = Recipe(micro_batch_size=16, loader="cached")
    run(judge, monkeypatch, b=Cell(workload="toy-mlp", recipe=recipe))
    arm = judge.arms[0][1]

    ended = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *arm.pytest_arguments, "-v"),
            *("--perf-rounds=1", "--perf-numerics=off", "-p", "no:cacheprovider"),
            "--benchmark-disable",
        ],
        env={**os.environ, **arm.environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    assert "compared_cell.py::test_training PASSED" in ended.stdout
