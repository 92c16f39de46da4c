"""The judge over launches that are made up: what it decides, when it stops, what it keeps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfsuite.gate.arms.arm import NOTHING, Arm, CellRun, Launch, Loaded, PairPlan, Suite
from perfsuite.gate.judge import judge as module
from perfsuite.gate.judge.counts import Slack
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.kept_pairs import KeptPairs
from perfsuite.gate.judge.pair_evidence import locate_log_ratio
from perfsuite.gate.judge.trial import Budget, CellPolicy, Judgement, Trial
from perfsuite.records.cell import Counts
from perfsuite.stats.evidence import Prior
from perfsuite.stats.sequential import Rule, decide

BASE, HEAD = (
    Arm(name=name, tree=Path("/trees") / name, import_roots=(), pytest_arguments=())
    for name in ("base", "head")
)
HEADS = Loaded(files=frozenset({"/trees/head/pkg.py"}))
USUAL = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
# Log ratios of a quiet machine, pair by pair.
QUIET = (0.001, -0.002, 0.002, 0.0, -0.001, 0.001)


def timed(*rounds_s: float) -> CellRun:
    return CellRun(outcome="passed", reason=None, rounds_s=rounds_s, record=None)


def ended(outcome: str, reason: str | None = None) -> CellRun:
    return CellRun(outcome=outcome, reason=reason, rounds_s=(), record=None)


class Machine:
    """Gives made-up launches instead of real ones, and remembers each call."""

    def __init__(self, cells: Callable[[str, str, int], CellRun | None]) -> None:
        """Take what a launch makes of a cell, from its name, the arm and the pair's number."""
        self._cells = cells
        self.loaded = {"base": NOTHING, "head": NOTHING}
        self.failure: str | None = None
        self.leaves_daemon = False
        self.broken: dict[str, dict[str, str]] = {}
        self.unfit: list[str | None] = []
        self.pauses_s: list[float] = []
        self.why_gpus_unfit: str | None = None
        self.load: str | None = None
        self.plans: list[PairPlan] = []
        self.names: list[list[str]] = []

    def launch_pair(
        self, arms: Sequence[Arm], plan: PairPlan, names: Sequence[str]
    ) -> dict[str, Launch]:
        self.plans.append(plan)
        self.names.append(list(names))
        launches = {}
        for arm in arms:
            runs = {name: self._cells(name, arm.name, plan.number) for name in names}
            broken = self.broken.get(arm.name, {})
            suite = Suite(
                cells={name: {} for name in names if name.partition("::")[0] not in broken},
                root=arm.tree,
                inifile=None,
                pythonpath=(),
                python_files=(),
                broken=broken,
            )
            launches[arm.name] = Launch(
                arm=arm,
                suite=suite,
                cells={name: run for name, run in runs.items() if run is not None},
                loaded=self.loaded[arm.name],
                failure=self.failure,
                leaves_daemon=self.leaves_daemon,
            )
        return launches


def slower_by(**log_ratios: float) -> Machine:
    """A quiet machine on which head is slower by so much; a round of the base takes 1 ms."""

    def run(name: str, arm: str, number: int) -> CellRun:
        if arm == "base":
            return timed(0.001)
        return timed(0.001 * math.exp(log_ratios[name] + QUIET[(number - 1) % len(QUIET)]))

    return Machine(run)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Judgement]:
    """Judge cells on a machine; every cell has the usual policy unless others are given."""

    def judge_on(
        machine: Machine, names: Sequence[str], *, max_pairs: int = 8, **changes: Any
    ) -> Judgement:
        monkeypatch.setattr(module, "launch_pair", machine.launch_pair)
        monkeypatch.setattr(module.fitness, "quietest_core", lambda: 0)
        monkeypatch.setattr(
            module.fitness, "why_unfit", lambda *_: machine.unfit.pop(0) if machine.unfit else None
        )
        monkeypatch.setattr(module.time, "sleep", machine.pauses_s.append, raising=False)
        monkeypatch.setattr(module.fitness, "why_gpus_unfit", lambda *_: machine.why_gpus_unfit)
        monkeypatch.setattr(module.fitness, "describe_load", lambda *_: machine.load)
        arguments: dict[str, Any] = {
            "budget": Budget(max_pairs=max_pairs, max_s=1e9, timeout_s=30.0),
            "seed": 1,
            "priors": {},
            "say": lambda text: None,
        }
        policies = changes.pop("policies", {})
        asked = {name: policies.get(name, USUAL) for name in names}
        return judge(BASE, HEAD, asked, **(arguments | changes))

    return judge_on


Run = Callable[..., Judgement]


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The only element is the time that a judgement sees."""
    now_s = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s[0])
    return now_s


def words(judgement: Judgement) -> dict[str, str | None]:
    return {trial.name: trial.word for trial in judgement.trials}


# --- verdicts ---


def test_what_slowed_both_arms_down_is_told_and_the_pair_counts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.fitness, "describe_power_limit", lambda *_: "GPU 0 was held")
    on_a_gpu = dataclasses.replace(timed(0.001), record={"device": "cuda"})

    judgement = run(Machine(lambda *_: on_a_gpu), ["same"], say=said.append)

    assert words(judgement) == {"same": "PASS"}
    assert said.count("  GPU 0 was held") == judgement.num_pairs


def test_what_others_took_is_told_after_a_pair_and_of_a_cell_that_it_leaves_open(run: Run) -> None:
    said: list[str] = []

    def cell(name: str, arm: str, number: int) -> CellRun:
        is_moved = (name, arm) == ("wild", "head")
        return timed(math.exp(0.3 * (-1) ** number) if is_moved else 1.0)

    machine = Machine(cell)
    machine.load = "other processes took 40.0 % of the processors' time"

    same, wild = run(machine, ["same", "wild"], max_pairs=4, say=said.append).trials

    assert (same.word, same.reason) == ("PASS", None)
    assert (wild.word, wild.reason) == ("INCONCLUSIVE", f"in the last pair {machine.load}")
    assert said.count(f"  {machine.load}") == 4


def test_each_cell_gets_the_verdict_of_its_pairs(run: Run) -> None:
    machine = slower_by(same=0.0, slower=0.10, faster=-0.10)

    judgement = run(machine, ["same", "slower", "faster"], max_pairs=3)

    assert words(judgement) == {"same": "PASS", "slower": "FAIL", "faster": "IMPROVED"}


def test_an_accepted_slowdown_is_not_a_regression_and_a_larger_one_is(run: Run) -> None:
    machine = slower_by(
        accepted=math.log(3.0), worse=math.log(3.3), merged=0.0, faster=math.log(0.5)
    )
    names = ["accepted", "worse", "merged", "faster"]
    asked = dataclasses.replace(USUAL, accepted_slowdown=3.0)

    judgement = run(
        machine,
        names,
        max_pairs=3,
        policies=dict.fromkeys(names, asked),
    )

    assert words(judgement) == dict(zip(names, ("PASS", "FAIL", "PASS", "IMPROVED"), strict=True))
    accepted = judgement.trials[0]
    assert accepted.reason == "a slowdown by 200.0 % is accepted"
    assert accepted.decision is not None
    assert accepted.decision.ratio == pytest.approx(3.0, rel=0.01)


def test_times_are_compared_per_sample_where_iterations_differ_in_samples(run: Run) -> None:
    machine = slower_by(same=math.log(2.0), slower=math.log(2.2))
    policy = dataclasses.replace(USUAL, num_samples=(32, 64))

    judgement = run(
        machine, ["same", "slower"], max_pairs=3, policies={"same": policy, "slower": policy}
    )

    assert words(judgement) == {"same": "PASS", "slower": "FAIL"}
    same = judgement.trials[0]
    assert same.reason is None
    assert same.decision is not None
    assert same.decision.ratio == pytest.approx(1.0, rel=0.01)
    assert [head_s / base_s for base_s, head_s in same.raw] == pytest.approx([1.0] * 2, rel=0.01)


def test_at_the_last_pair_what_is_not_decided_is_inconclusive(run: Run) -> None:
    machine = Machine(
        lambda name, arm, number: timed(0.001 if arm == "base" or number % 2 else 0.0012)
    )

    judgement = run(machine, ["noisy"], max_pairs=4)

    (trial,) = judgement.trials
    assert (trial.word, judgement.num_pairs) == ("INCONCLUSIVE", 4)
    assert trial.decision is not None
    assert trial.decision.num_pairs == 4


def test_decided_cells_leave_the_later_pairs(run: Run) -> None:
    def cell(name: str, arm: str, number: int) -> CellRun:
        if name == "noisy":
            return timed(0.001 if arm == "base" or number % 2 else 0.0012)
        return timed(0.001 if arm == "base" else 0.001 * math.exp(QUIET[number]))

    machine = Machine(cell)
    judgement = run(machine, ["quiet", "noisy"], max_pairs=5)

    assert [sorted(names) for names in machine.names] == [["noisy", "quiet"]] * 2 + [["noisy"]] * 3
    assert [len(trial.raw) for trial in judgement.trials] == [2, 5]


def test_a_verdict_can_be_recomputed_from_the_raw_pairs(run: Run) -> None:
    machine = slower_by(same=0.0, slower=0.10, between=0.03)
    prior = Prior(sd=0.004)

    judgement = run(machine, ["same", "slower", "between"], priors={"between": prior})

    for trial in judgement.trials:
        rule = Rule(
            tolerance=0.02,
            limit=0.05,
            num_cells=3,
            max_pairs=8,
            prior=prior if trial.name == "between" else None,
        )
        assert decide(trial.pairs, rule) == trial.decision
        assert trial.rule == rule
        assert trial.decision is not None
        assert trial.decision.word == trial.word


def test_a_re_run_launches_only_what_is_open_and_adds_to_its_pairs(
    run: Run, tmp_path: Path
) -> None:
    machine = Machine(
        lambda name, arm, number: timed(
            0.001 if arm == "base" or (name == "noisy" and number % 2) else 0.0012
        )
    )
    first = run(machine, ["slow", "noisy"], max_pairs=4)
    KeptPairs(tmp_path / "pairs.json", "base", "head").write(first.trials)
    kept = KeptPairs(tmp_path / "pairs.json", "base", "head").cells
    machine.names.clear()

    rerun = run(machine, ["slow", "noisy"], max_pairs=4, kept=kept)

    assert words(first) == words(rerun) == {"slow": "FAIL", "noisy": "INCONCLUSIVE"}
    assert machine.names == [["noisy"]] * 4
    assert [len(trial.pairs) for trial in rerun.trials] == [len(first.trials[0].pairs), 8]


def test_cells_that_others_judge_share_the_error_rate(run: Run) -> None:
    slower = slower_by(slower=0.026)

    alone = run(slower, ["slower"], max_pairs=3)
    of_many = run(slower, ["slower"], max_pairs=3, num_cells=2000)

    assert (words(alone), words(of_many)) == ({"slower": "FAIL"}, {"slower": "PASS"})
    assert of_many.trials[0].rule.num_cells == 2000


def test_a_pair_is_the_trimmed_mean_of_the_ratios_of_rounds_beside_each_other(run: Run) -> None:
    # The machine is slower by half from round to round, which is in neither ratio.
    machine = Machine(
        lambda name, arm, number: (
            timed(1.0, 2.0, 4.0, 2.0, 1.0) if arm == "base" else timed(2.5, 5.0, 40.0, 5.0, 2.0)
        )
    )

    judgement = run(machine, ["a"], max_pairs=3)

    (trial,) = judgement.trials
    assert trial.raw == [pytest.approx((2.0, 5.0))] * 3
    assert [pair.log_ratio for pair in trial.pairs] == [math.log(2.5)] * 3
    # The total time has the stall: 54.5 s over 10 s.
    assert [pair.mean_log_ratio for pair in trial.pairs] == [pytest.approx(math.log(5.45))] * 3
    assert {pair.error for pair in trial.pairs} == {
        locate_log_ratio((1.0, 2.0, 4.0, 2.0, 1.0), (2.5, 5.0, 40.0, 5.0, 2.0))[1]
    }


def test_a_cells_own_tolerance_and_limit_decide_it(run: Run) -> None:
    machine = slower_by(strict=0.10, mild=0.10)
    mild = CellPolicy(tolerance=0.15, limit=0.20, floor_s=0.0)

    judgement = run(machine, ["strict", "mild"], policies={"mild": mild})

    assert words(judgement) == {"strict": "FAIL", "mild": "PASS"}


def test_a_slowdown_below_the_floor_passes_and_says_so(run: Run) -> None:
    machine = slower_by(small=0.10, large=0.10)
    policies = {
        "small": CellPolicy(tolerance=0.02, limit=0.05, floor_s=200e-6),
        "large": CellPolicy(tolerance=0.02, limit=0.05, floor_s=100e-6),
    }

    judgement = run(machine, ["small", "large"], policies=policies)

    assert words(judgement) == {"small": "PASS", "large": "FAIL"}
    small, large = judgement.trials
    assert small.reason == "slower by 106 us an iteration, below the floor of 200 us"
    assert large.reason is None


def test_the_floor_excuses_no_cell_that_is_inconclusive(run: Run) -> None:
    machine = Machine(
        lambda name, arm, number: timed(0.001 if arm == "base" or number % 2 else 0.0012)
    )
    policies = {"a": CellPolicy(tolerance=0.02, limit=0.05, floor_s=1.0)}

    judgement = run(machine, ["a"], max_pairs=4, policies=policies)

    assert words(judgement) == {"a": "INCONCLUSIVE"}


# --- what is no time ---


@pytest.mark.parametrize(
    ("base", "head", "word", "reason"),
    [
        (timed(1.0), ended("failed", "boom"), "ERROR", "the head arm failed: boom"),
        (
            timed(1.0),
            ended("skipped", "no GPU"),
            "VANISHED",
            "head skips what the base measures: no GPU",
        ),
        (
            ended("skipped", "no GPU"),
            ended("skipped", "no GPU"),
            "SKIPPED",
            "both arms skipped: no GPU",
        ),
        (
            timed(1.0),
            ended("passed"),
            "VANISHED",
            "head skips what the base measures: it passes and times nothing",
        ),
        (ended("passed"), ended("passed"), "SKIPPED", "both arms passed: nothing was timed"),
        (
            ended("skipped", "x"),
            ended("passed"),
            "SKIPPED",
            "the head arm passed: nothing was timed",
        ),
        (
            ended("failed", "b"),
            ended("passed"),
            "SKIPPED",
            "the head arm passed: nothing was timed",
        ),
        (ended("passed"), ended("skipped", "x"), "SKIPPED", "the head arm skipped: x"),
        (ended("failed", "boom"), timed(1.0), "NO-BASELINE", "the base arm failed: boom"),
        (ended("skipped", "x"), timed(1.0), "NO-BASELINE", "the base arm skipped: x"),
        (ended("passed"), timed(1.0), "NO-BASELINE", "the base arm passed: nothing was timed"),
        (ended("failed", "b"), ended("failed", "h"), "ERROR", "both arms failed: h"),
        (
            timed(0.0),
            timed(1.0),
            "INVALID",
            "a round took 0.0 s; its clock did not advance, or is broken",
        ),
        (
            timed(1.0),
            timed(math.nan),
            "INVALID",
            "a round took nan s; its clock did not advance, or is broken",
        ),
        (
            timed(1.0),
            timed(-1.0),
            "INVALID",
            "a round took -1.0 s; its clock did not advance, or is broken",
        ),
        (None, timed(1.0), "INVALID", "the base launch did not measure it: it ended early"),
        (timed(1.0), None, "INVALID", "the head launch did not measure it: it ended early"),
    ],
)
def test_what_is_no_time_is_never_judged(
    run: Run, base: CellRun | None, head: CellRun | None, word: str, reason: str
) -> None:
    machine = Machine(lambda name, arm, number: base if arm == "base" else head)
    machine.failure = "it ended early"

    judgement = run(machine, ["a"])

    (trial,) = judgement.trials
    assert (trial.word, trial.reason, trial.raw) == (word, reason, [])
    assert judgement.num_pairs == 1


@pytest.mark.parametrize(("arm", "word"), [("base", "NO-BASELINE"), ("head", "ERROR")])
def test_tests_that_cannot_be_collected_are_distinguished_from_a_launch_that_broke(
    run: Run, arm: str, word: str
) -> None:
    why = "ImportError: cannot import name 'b'"
    cells = ["test_a.py::test_b", "test_c.py::test_d"]
    machine = Machine(
        lambda name, asked, number: None if asked == arm and name == cells[0] else timed(1.0)
    )
    machine.broken[arm] = {"test_a.py": why}

    broken, whole = run(machine, cells, max_pairs=3).trials

    reason = f"the {arm} launch did not measure it: test_a.py: {why}"
    assert (broken.word, broken.reason) == (word, reason)
    assert whole.word == "PASS"


def test_cells_of_a_file_that_an_arm_cannot_import_cost_no_further_pair(run: Run) -> None:
    cells = ["test_a.py::test_b", "test_a.py::test_c"]
    machine = Machine(lambda name, arm, number: None)
    machine.broken["base"] = {"test_a.py": "ImportError: cannot import name 'b'"}

    judgement = run(machine, cells, max_pairs=3)

    assert words(judgement) == dict.fromkeys(cells, "NO-BASELINE")
    assert judgement.num_pairs == 1


def test_a_cell_that_a_whole_launch_left_out_is_invalid(run: Run) -> None:
    machine = Machine(lambda name, arm, number: None if arm == "base" else timed(1.0))

    (trial,) = run(machine, ["a"]).trials

    assert (trial.word, trial.reason) == (
        "INVALID",
        "the base launch did not measure it: its session stopped before the cell had ended",
    )


def test_a_launch_that_ends_in_one_cell_costs_the_others_a_pair(run: Run) -> None:
    machine = slower_by(before=0.0, ends=0.0, after=0.0)
    timed_cells = machine._cells

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        names = machine.names[-1]
        is_over = "ends" in names and names.index(name) >= names.index("ends")
        return None if is_over else timed_cells(name, arm, number)

    machine._cells = cells
    machine.failure = "its pytest ended early with exit code 3"

    judgement = run(machine, ["before", "ends", "after"], max_pairs=3)

    assert words(judgement) == {"before": "PASS", "ends": "INVALID", "after": "PASS"}
    assert judgement.trials[1].reason == (
        "the base launch did not measure it: its pytest ended early with exit code 3"
    )
    assert all("ends" not in names for names in machine.names[1:])


def test_a_cell_that_fails_later_is_an_error_whatever_its_pairs_said(run: Run) -> None:
    def cell(name: str, arm: str, number: int) -> CellRun:
        if number == 3:
            return ended("failed", "flaky")
        return timed(1.0 if arm == "base" else 1.04)

    machine = Machine(cell)

    judgement = run(machine, ["a"])

    (trial,) = judgement.trials
    assert (trial.word, len(trial.raw), judgement.num_pairs) == ("ERROR", 2, 3)


def test_one_cells_failure_leaves_the_others_alone(run: Run) -> None:
    def cell(name: str, arm: str, number: int) -> CellRun:
        if name == "bad":
            return ended("failed", "boom")
        return timed(0.001 * math.exp(QUIET[number]) if arm == "head" else 0.001)

    assert words(run(Machine(cell), ["bad", "good"])) == {"bad": "ERROR", "good": "PASS"}


def test_a_wrong_import_makes_everything_invalid_at_once(run: Run) -> None:
    machine = slower_by(a=0.0, b=0.2)
    machine.loaded["base"] = HEADS

    judgement = run(machine, ["a", "b"])

    reason = (
        "the base arm loaded /trees/head/pkg.py, which is head's; is it installed in editable "
        "mode, or behind a link with an absolute path? "
        "Name its folder in pytest's pythonpath or in PYTHONPATH, or have the code find it "
        "beside itself"
    )
    assert judgement.num_pairs == 1
    assert words(judgement) == {"a": "INVALID", "b": "INVALID"}
    assert {trial.reason for trial in judgement.trials} == {reason}
    assert [trial.raw for trial in judgement.trials] == [[], []]


def test_a_wrong_import_takes_earlier_verdicts_back(run: Run) -> None:
    machine = slower_by(quick=0.0, slow=0.03)
    seen = itertools.count(1)

    def say(_: str) -> None:
        if next(seen) == 3:
            machine.loaded["base"] = HEADS

    judgement = run(
        machine,
        ["quick", "slow"],
        say=say,
        policies={"slow": CellPolicy(tolerance=0.02, limit=0.03, floor_s=0.0)},
    )

    assert judgement.num_pairs == 3
    assert words(judgement) == {"quick": "INVALID", "slow": "INVALID"}


# --- the budget ---


def test_no_pair_begins_that_would_not_end_in_time(run: Run, now_s: list[float]) -> None:
    durations_s = iter([10.0, 20.0, 10.0, 1.0])

    def cell(name: str, arm: str, number: int) -> CellRun:
        if arm == "head":
            now_s[0] += next(durations_s)
        return timed(0.001 if arm == "base" or number % 2 else 0.0012)

    judgement = run(Machine(cell), ["a"], budget=Budget(max_pairs=64, max_s=50.0, timeout_s=30.0))

    (trial,) = judgement.trials
    # After two pairs 30 s are spent and the longest took 20; after the third 40.
    assert (judgement.num_pairs, judgement.wall_s) == (3, 40.0)
    assert (trial.word, trial.reason) == ("INCONCLUSIVE", "the time was up")
    assert len(trial.raw) == 3


def test_a_cell_whose_mean_alone_is_slower_says_so_when_the_time_is_up(
    run: Run, now_s: list[float]
) -> None:
    def stalling(name: str, arm: str, number: int) -> CellRun:
        now_s[0] += 5.0
        return timed(*[0.001] * 9, 0.001 if arm == "base" else 0.005 + 0.0001 * number)

    judgement = run(
        Machine(stalling), ["a"], budget=Budget(max_pairs=64, max_s=30.0, timeout_s=30.0)
    )

    (trial,) = judgement.trials
    assert (trial.word, len(trial.raw)) == ("INCONCLUSIVE", 3)
    assert trial.reason == "the time was up; typical +0.0 %, mean +42.0 %: stalls"


def test_without_time_nothing_is_judged_and_nothing_passes(run: Run) -> None:
    machine = slower_by(a=0.0)
    budget = Budget(max_pairs=8, max_s=-1.0, timeout_s=30.0)

    judgement = run(machine, ["a"], budget=budget)

    assert (judgement.num_pairs, words(judgement)) == (0, {"a": "INCONCLUSIVE"})
    assert judgement.trials[0].decision is None


def test_each_plan_has_the_budgets_timeout_and_its_number(run: Run) -> None:
    machine = slower_by(a=0.0)

    run(machine, ["a"])

    assert [(plan.number, plan.timeout_s, plan.profiles) for plan in machine.plans] == [
        (number, 30.0, False) for number in (1, 2)
    ]


# --- chance ---


def calls_of(machine: Machine) -> list[tuple[Mapping[str, Any], list[str]]]:
    """All that was random in the calls of a machine."""
    return [
        ({"first": plan.first, "hash_seed": plan.hash_seed}, names)
        for plan, names in zip(machine.plans, machine.names, strict=True)
    ]


def noisy_pairs(run: Run, seed: int) -> list[tuple[Mapping[str, Any], list[str]]]:
    machine = Machine(
        lambda name, arm, number: timed(0.001 if arm == "base" or number % 2 else 0.0012)
    )
    run(machine, list("abcdef"), max_pairs=16, seed=seed)
    return calls_of(machine)


def test_the_seed_reproduces_order_first_arms_and_hash_seeds(run: Run) -> None:
    first, second, other = (noisy_pairs(run, seed) for seed in (5, 5, 6))

    assert first == second
    assert first != other


def test_order_first_arm_and_hash_seed_change_from_pair_to_pair(run: Run) -> None:
    asked = noisy_pairs(run, 5)

    assert len({tuple(names) for _, names in asked}) > 10
    assert all(sorted(names) == list("abcdef") for _, names in asked)
    assert {plan["first"] for plan, _ in asked} == {"base", "head"}
    assert len({plan["hash_seed"] for plan, _ in asked}) == 16
    assert all(0 <= plan["hash_seed"] < 2**32 for plan, _ in asked)


# --- what it says ---


def test_progress_shows_the_running_intervals(run: Run) -> None:
    said: list[str] = []

    def cell(name: str, arm: str, number: int) -> CellRun:
        spread = {"calm": 0.001, "wild": 0.03}[name]
        return timed(1.0 if arm == "base" else math.exp(spread * (-1) ** number))

    run(Machine(cell), ["calm", "wild"], max_pairs=4, say=said.append)

    assert [re.sub(r"\d+\.?\d*(?= %| s)", "#", line) for line in said] == [
        "pair 1: 0 of 2 cells decided (# s)",
        "a pair takes # s: about # s more where nothing became slower",
        "pair 2: 1 of 2 cells decided (# s)",
        "  calm: PASS, +# %, between -# % and +# %",
        "  wild: open, +# %, between -# % and +# %",
        "pair 3: 1 of 2 cells decided (# s)",
        "  wild: open, -# %, between -# % and +# %",
        "pair 4: 2 of 2 cells decided (# s)",
        "  wild: INCONCLUSIVE, +# %, between -# % and +# %",
    ]


def test_progress_says_what_the_table_will_say(run: Run) -> None:
    said: list[str] = []

    def cell(name: str, arm: str, number: int) -> CellRun:
        run = counted(arm, **({"flops": 1100} if name == "more" else {}))
        rounds_s = [one * (1.0 + 0.001 * (arm == "head")) for one in run.rounds_s]
        return dataclasses.replace(run, rounds_s=rounds_s)

    cells = ["more", "same"]
    policies = dict.fromkeys(cells, EXACTLY)
    judged = run(Machine(cell), cells, max_pairs=4, policies=policies, say=said.append)

    assert [one.found for one in judged.trials] == ["FAIL by counts", "PASS"]
    shown = sorted(line.partition(",")[0] for line in said if line.startswith("  "))
    assert shown == ["  more: FAIL by counts", "  same: PASS"]


def test_bounds_that_say_nothing_are_not_shown(run: Run) -> None:
    said: list[str] = []

    def cell(name: str, arm: str, number: int) -> CellRun:
        return timed(1.0 if arm == "base" else math.exp((-1) ** number))

    run(Machine(cell), ["wild"], max_pairs=4, say=said.append)

    assert "  wild: open, +0.0 %" in said


# --- the machine ---


def test_a_pair_on_an_unfit_machine_is_run_again(run: Run) -> None:
    machine = slower_by(same=0.0)
    machine.unfit = [None, "too hot", None]
    said: list[str] = []

    judgement = run(machine, ["same"], max_pairs=3, say=said.append)

    assert words(judgement) == {"same": "PASS"}
    assert (judgement.num_pairs, len(judgement.trials[0].raw)) == (3, 2)
    assert "pair 2 does not count: too hot; the next in 10 s" in said


def test_pairs_that_do_not_count_are_farther_and_farther_apart(run: Run) -> None:
    machine = slower_by(same=0.0)
    machine.unfit = ["a burst", "a burst"]

    judgement = run(machine, ["same"], max_pairs=3)

    assert words(judgement) == {"same": "PASS"}
    assert machine.pauses_s == [10.0, 20.0]


@pytest.mark.parametrize(
    ("num_unfit", "word", "reason"),
    [
        (1, "INCONCLUSIVE", "the time was up"),
        (3, "INVALID", "the machine was not fit: too hot"),
    ],
)
def test_unfit_pairs_at_the_end_make_a_cell_invalid_only_where_they_end_the_session(
    run: Run, now_s: list[float], num_unfit: int, word: str, reason: str
) -> None:
    def noisy(name: str, arm: str, number: int) -> CellRun:
        now_s[0] += 5.0
        return timed(0.001 if arm == "base" or number % 2 else 0.0012)

    machine = Machine(noisy)
    machine.unfit = [None, *["too hot"] * num_unfit]
    budget = Budget(max_pairs=64, max_s=10.0 * (1 + num_unfit), timeout_s=30.0)

    (trial,) = run(machine, ["a"], budget=budget).trials

    assert (trial.word, trial.reason) == (word, reason)
    assert len(trial.raw) == 1


def test_a_pair_whose_arms_ran_at_other_clocks_is_run_again(run: Run) -> None:
    def trained_at(name: str, arm: str, number: int) -> CellRun:
        clocks = (1980.0, 345.0) if (arm, number) == ("head", 1) else (1950.0, 1980.0)
        device = {"device": "cpu" if name == "on a CPU" else "cuda", "world_size": 1}
        return dataclasses.replace(timed(0.001), record=device, clocks_mhz=clocks)

    judgement = run(Machine(trained_at), ["on a CPU"], max_pairs=3)
    assert (words(judgement), judgement.num_pairs) == ({"on a CPU": "PASS"}, 2)

    judgement = run(Machine(trained_at), ["on a GPU"], max_pairs=3)
    assert (words(judgement), judgement.num_pairs) == ({"on a GPU": "PASS"}, 3)
    always = Machine(lambda name, arm, number: trained_at(name, arm, 1))
    steady, trial = run(always, ["on a CPU", "on a GPU"], max_pairs=9).trials
    assert (steady.word, len(steady.raw)) == ("PASS", 2)
    assert (trial.word, trial.reason, len(trial.raw)) == (
        "INVALID",
        "GPU 0 ran at 1950 MHz in the base's turns, and at 1980 MHz in head's; lock its clock "
        "below what its power limit allows (nvidia-smi --lock-gpu-clocks)",
        0,
    )


@pytest.mark.parametrize(
    ("record", "library", "word"),
    [
        ({"device": "cpu"}, "/usr/lib/libcuda.so.1", "PASS"),
        ({"device": "cuda"}, None, "INVALID"),
        (None, None, "PASS"),
        (None, "/usr/lib/libcuda.so.1", "INVALID"),
    ],
)
def test_who_computes_on_a_gpu_matters_to_cells_that_may_use_one(
    run: Run, record: object, library: str | None, word: str
) -> None:
    loaded = dataclasses.replace(NOTHING, files=frozenset({library} - {None}))
    run_of = dataclasses.replace(timed(0.001), record=record, loaded=loaded)
    machine = Machine(lambda name, arm, number: run_of)
    machine.why_gpus_unfit = "other processes compute on the GPU: 42"

    assert words(run(machine, ["a"])) == {"a": word}


def test_a_machine_that_stays_unfit_makes_undecided_cells_invalid(run: Run) -> None:
    machine = slower_by(slower=0.0, wild=0.0)
    machine._cells = lambda name, arm, number: timed(
        0.001 if arm == "base" or name == "slower" else 0.001 * (1 + number % 2)
    )
    machine.unfit = [None, None, None, "too hot", "too hot", "too hot"]

    judgement = run(machine, ["slower", "wild"], max_pairs=8)

    assert words(judgement) == {"slower": "PASS", "wild": "INVALID"}
    assert judgement.trials[1].reason == "the machine was not fit: too hot"
    assert judgement.num_pairs == 6


@pytest.mark.parametrize("ended_first", ["base", "head"])
def test_the_arm_that_ended_by_itself_is_the_one_that_is_blamed(
    run: Run, monkeypatch: pytest.MonkeyPatch, ended_first: str
) -> None:
    machine = Machine(lambda name, arm, number: None)
    failures = dict.fromkeys(("base", "head"), "the other arm ended early\n  | log")
    failures[ended_first] = "its pytest ended early with signal 9"

    def launch_pair(arms: Any, plan: PairPlan, names: Sequence[str]) -> dict[str, Launch]:
        launches = Machine.launch_pair(machine, arms, plan, names)
        for arm, launch in launches.items():
            launch.failure = failures[arm]
        return launches

    machine.launch_pair = launch_pair  # type: ignore[method-assign]

    judgement = run(machine, ["a"])

    assert words(judgement) == {"a": "INVALID"}
    assert judgement.trials[0].reason == (
        f"the {ended_first} launch did not measure it: its pytest ended early with signal 9"
    )


# --- counts ---


def counted(arm: str, **head: Any) -> CellRun:
    """A launch that counted; head's counts may be others."""
    counts = dict.fromkeys(
        ("flops", "ops", "collectives", "collective_bytes", "saved_activation_bytes"), 1000
    )
    memory = {"metric": "live_storage_peak", "peak_bytes": 2**20, "per_rank": [2**20]}
    record = {"counts": {**counts, "kernel_launches": None}, "memory": memory, "other": 1}
    if arm == "head":
        record["counts"] |= {name: value for name, value in head.items() if name in counts}
        record |= {name: value for name, value in head.items() if name not in counts}
    return dataclasses.replace(timed(0.001), record=record)


EXACTLY = dataclasses.replace(USUAL, slacks=({},))


def judge_counts(run: Run, policies: CellPolicy, **head: Any) -> Trial:
    machine = Machine(lambda name, arm, number: counted(arm, **head))
    return run(machine, ["a"], max_pairs=3, policies={"a": policies}).trials[0]


def test_a_count_that_grew_fails_a_cell_that_is_no_slower(run: Run) -> None:
    trial = judge_counts(run, EXACTLY, flops=1100)

    assert (trial.word, trial.by) == ("FAIL", "counts")
    assert trial.reason == "flops 1.00 k -> 1.10 k (+10.0 %), allowed 0 %"


def test_a_count_that_varies_by_itself_is_compared_from_six_launches_on(run: Run) -> None:
    def padded(name: str, arm: str, number: int) -> CellRun:
        launch = counted("head", flops=1000 + 10 * (number % 2) + 500 * (arm == "head"))
        # Noisy enough for so many pairs.
        noise = 0.3 * ((number % 2 == 0) == (arm == "head"))
        return dataclasses.replace(launch, rounds_s=(0.001 * (1 + noise),) * 2)

    policies = {"a": EXACTLY}
    (few,) = run(Machine(padded), ["a"], max_pairs=3, policies=policies).trials
    assert few.by == "pairs"
    assert "flops is not compared: it is 1000 to 1010 in" in str(few.reason)

    (many,) = run(Machine(padded), ["a"], max_pairs=8, policies=policies).trials
    assert (many.word, many.by) == ("FAIL", "counts")
    assert "flops 1.01 k -> 1.50 k (+48.5 %)" in str(many.reason)


def test_memory_that_grew_fails_it_too(run: Run) -> None:
    memory = {"metric": "live_storage_peak", "peak_bytes": 3 * 2**20, "per_rank": [3 * 2**20]}

    trial = judge_counts(run, EXACTLY, memory=memory)

    assert (trial.word, trial.by) == ("FAIL", "counts")
    assert trial.reason == "memory 1.00 MiB -> 3.00 MiB (+200.0 %), allowed 4.00 KiB"


def trained(arm: str, **head: Any) -> CellRun:
    """A launch that trained; head's recipe, batch or rounds may be others."""
    record = {"workload": "net", "recipe": {"precision": "fp32"}, "samples_per_s": 64 / 0.001}
    return dataclasses.replace(timed(0.001), record=record | (head if arm == "head" else {}))


def test_steps_over_other_samples_are_not_compared(run: Run) -> None:
    machine = Machine(lambda name, arm, number: trained(arm, samples_per_s=16 / 0.001))

    trial = run(machine, ["a"], policies={"a": EXACTLY}).trials[0]

    assert (trial.word, trial.raw) == ("INVALID", [])
    assert trial.reason == (
        "a step has 64 samples in the base and 16 in head, so that neither times nor counts "
        "compare; rename the test if that is intended"
    )


def test_steps_over_another_number_of_ranks_are_not_compared(run: Run) -> None:
    machine = Machine(lambda name, arm, number: trained(arm, world_size=3))

    trial = run(machine, ["a"], policies={"a": EXACTLY}).trials[0]

    assert (trial.word, trial.raw) == ("INVALID", [])
    assert trial.reason == (
        "training has 1 rank in the base and 3 in head, so that neither times nor counts compare; "
        "rename the test if that is intended"
    )


def test_another_recipe_is_named_beside_the_verdict(run: Run) -> None:
    machine = Machine(lambda name, arm, number: trained(arm, recipe={"precision": "bf16"}))

    trial = run(machine, ["a"], max_pairs=3, policies={"a": EXACTLY}).trials[0]

    assert trial.word == "PASS"
    assert trial.reason == "head trains with precision 'bf16' instead of 'fp32'"


def test_recipes_that_are_meant_to_differ_may_have_other_batches(run: Run) -> None:
    machine = Machine(lambda name, arm, number: trained(arm, samples_per_s=16 / 0.001))

    trial = run(machine, ["a"], max_pairs=3, policies={"a": USUAL}).trials[0]

    assert (trial.word, trial.reason) == ("PASS", None)


def test_where_time_is_up_before_the_first_pair_no_count_is_looked_at(run: Run) -> None:
    machine = Machine(lambda name, arm, number: counted(arm))

    judgement = run(
        machine,
        ["a"],
        policies={"a": EXACTLY},
        budget=Budget(max_pairs=3, max_s=0.0, timeout_s=30.0),
    )

    trial = judgement.trials[0]
    assert (trial.word, trial.reason) == ("INCONCLUSIVE", "the time was up")


@pytest.mark.parametrize(
    ("policies", "head"),
    [
        (EXACTLY, {}),
        (EXACTLY, {"flops": 900}),
        (dataclasses.replace(USUAL, slacks=({"flops": Slack(ratio=0.2)},)), {"flops": 1100}),
        (dataclasses.replace(USUAL, slacks=({"flops": None},)), {"flops": 1100}),
        (
            dataclasses.replace(EXACTLY, accepted_increase={"flops": 1.2}.__getitem__),
            {"flops": 1100},
        ),
        (USUAL, {"flops": 1100}),
    ],
    ids=["equal", "fewer", "slack", "off", "accepted", "two recipes"],
)
def test_counts_that_may_differ_leave_the_verdict_to_the_times(
    run: Run, policies: CellPolicy, head: dict[str, Any]
) -> None:
    trial = judge_counts(run, policies, **head)

    assert (trial.word, trial.by, trial.reason) == ("PASS", "pairs", None)


def test_counts_explain_a_cell_that_times_have_failed(run: Run) -> None:
    def slower(name: str, arm: str, number: int) -> CellRun:
        times = timed(0.001 if arm == "base" else 0.0011)
        return dataclasses.replace(times, record=counted(arm, ops=1001).record)

    trial = run(Machine(slower), ["a"], max_pairs=3, policies={"a": EXACTLY}).trials[0]

    assert (trial.word, trial.by) == ("FAIL", "pairs")
    assert trial.reason == "ops 1,000 -> 1,001 (+0.1 %), allowed 0 %"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ({"memory": None}, "memory is not available of head, so it is not compared"),
        (
            {"counts": {"flops": "many"}},
            "counts and memory are not compared: a record has another form: ",
        ),
    ],
    ids=["absent", "form"],
)
def test_counts_that_cannot_be_compared_are_named(run: Run, head: dict[str, Any], why: str) -> None:
    trial = judge_counts(run, EXACTLY, **head)

    assert (trial.word, trial.by) == ("PASS", "pairs")
    assert trial.reason is not None
    assert trial.reason.startswith(why)


def test_a_change_of_the_environment_hides_no_count(run: Run) -> None:
    def elsewhere(name: str, arm: str, number: int) -> CellRun:
        counts = counted(arm, flops=1100)
        assert counts.record is not None
        return dataclasses.replace(counts, record={**counts.record, "fingerprint": arm})

    trial = run(Machine(elsewhere), ["a"], max_pairs=3, policies={"a": EXACTLY}).trials[0]

    assert (trial.word, trial.by) == ("FAIL", "counts")


@pytest.mark.parametrize(
    ("flops", "word"), [((1100, 1000, 1100), "PASS"), ((1100, 1050, 1200), "FAIL")]
)
def test_an_increase_must_stand_in_every_launch(run: Run, flops: Sequence[int], word: str) -> None:
    machine = Machine(lambda name, arm, number: counted(arm, flops=flops[number - 1]))

    trial = run(machine, ["a"], max_pairs=3, policies={"a": EXACTLY}).trials[0]

    assert trial.word == word
    assert trial.reason == (
        None if word == "PASS" else "flops 1.00 k -> 1.05 k (+5.0 %), allowed 0 %"
    )


def test_launches_count_until_head_and_base_have_counted_alike(run: Run) -> None:
    flops = {"a": (1000, 1000, 1100), "b": (1100, 1000, 1000), "c": (1100, 1100, 1100)}

    def noisy(name: str, arm: str, number: int) -> CellRun:
        times = timed(0.001 if arm == "base" else 0.001 + 0.00005 * (-1) ** number)
        return dataclasses.replace(times, record=counted(arm, flops=flops[name][number - 1]).record)

    machine = Machine(noisy)
    judgement = run(machine, ["a", "b", "c"], max_pairs=3, policies=dict.fromkeys("abc", EXACTLY))

    assert [plan.uncounted for plan in machine.plans] == [set(), {"a"}, {"a", "b"}]
    words = [one.word for one in judgement.trials]
    assert words == ["INCONCLUSIVE", "INCONCLUSIVE", "FAIL"]


def test_launches_that_need_not_count_leave_what_the_others_counted(run: Run) -> None:
    def once(name: str, arm: str, number: int) -> CellRun:
        return counted(arm, memory=None) if number == 1 else trained(arm)

    trial = run(Machine(once), ["a"], max_pairs=3, policies={"a": EXACTLY}).trials[0]

    assert trial.reason == "memory is not available of head, so it is not compared"


@pytest.mark.parametrize(
    ("num_threads", "load", "word", "told"),
    [
        ((2, 1), None, "PASS", "head computes with 1 thread, and the base with 2"),
        (
            (2, 1),
            "other processes took 30.0 % of the processors' time",
            "INCONCLUSIVE",
            "head computes with 1 thread, and the base with 2: beside other work times say little",
        ),
        ((2, 2), "other processes took 30.0 % of the processors' time", "PASS", None),
        ((None, 1), "other processes took 30.0 % of the processors' time", "PASS", None),
    ],
)
def test_beside_other_work_another_number_of_threads_is_no_pass(
    run: Run,
    num_threads: tuple[int | None, int],
    load: str | None,
    word: str,
    told: str | None,
) -> None:
    base, head = num_threads

    def cells(name: str, arm: str, number: int) -> CellRun:
        return dataclasses.replace(timed(0.001), num_threads=base if arm == "base" else head)

    machine = Machine(cells)
    machine.load = load

    trial = run(machine, ["a"], max_pairs=3).trials[0]

    assert (trial.word, trial.reason) == (word, told)


@pytest.mark.parametrize(
    ("flops", "peak_bytes", "recipe", "word"),
    [
        (0, 2**19, None, "INVALID"),
        (None, 2**19, None, "INVALID"),
        (0, 2**20 - 2**16, None, "PASS"),  # a buffer less
        (1000, 2**19, None, "PASS"),  # as many FLOPs: as large a batch
        (0, 2**19, {"precision": "fp32"}, "PASS"),  # a recipe tells its size
    ],
)
def test_a_step_without_flops_that_needs_far_less_memory_may_train_less(
    run: Run, flops: int | None, peak_bytes: int, recipe: object, word: str
) -> None:
    def cells(name: str, arm: str, number: int) -> CellRun:
        made = counted(arm)
        assert made.record is not None
        memory = {**made.record["memory"], "per_rank": [2**20]}
        memory["peak_bytes"] = peak_bytes if arm == "head" else 2**20
        counts = {**made.record["counts"], "flops": flops}
        record = {**made.record, "counts": counts, "memory": memory, "recipe": recipe}
        return dataclasses.replace(made, record=record)

    trial = run(Machine(cells), ["a"], max_pairs=3, policies={"a": EXACTLY}).trials[0]

    assert trial.word == word
    told = (
        "memory 1.00 MiB -> 512 KiB (-50.0 %), and nothing shows that a step still trains as much"
    )
    assert (trial.reason or "").startswith(told) == (word == "INVALID")


# --- memory ---

_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
_NOT_BESIDE = "the arms ran one after another, not round by round"
_ONE_BY_ONE = f"memory has no room for both arms: {_NOT_BESIDE}"


@pytest.mark.parametrize(
    "why",
    [
        _FULL,
        "RuntimeError: [enforce fail] DefaultCPUAllocator: not enough memory: you tried to",
        "MemoryError",
        "OSError: [Errno 12] Cannot allocate memory",
        "rank 1 of 2 was killed by SIGKILL (by a user, or by the kernel because memory ran out)",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "RuntimeError: GET was unable to find an engine to execute this computation",
        "ncclUnhandledCudaError: Last error:\nCuda failure 2 'out of memory'",
        "Cuda failure 2",
    ],
)
def test_a_cell_that_memory_has_no_room_for_twice_is_run_one_by_one(run: Run, why: str) -> None:
    machine = slower_by(big=0.0, small=0.0)
    timed_cells = machine._cells

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        if name == "big" and name not in machine.plans[-1].one_by_one and arm == "head":
            return ended("failed", why)
        return timed_cells(name, arm, number)

    machine._cells = cells

    judgement = run(machine, ["big", "small"], max_pairs=3)

    assert words(judgement) == {"big": "PASS", "small": "PASS"}
    assert [trial.reason for trial in judgement.trials] == [_ONE_BY_ONE, None]
    assert [plan.one_by_one for plan in machine.plans] == [frozenset(), *[frozenset({"big"})] * 2]
    assert [len(trial.raw) for trial in judgement.trials] == [2, 2]


def test_how_the_arms_were_run_is_said_after_what_failed_the_cell(run: Run) -> None:
    def cells(name: str, arm: str, number: int) -> CellRun:
        return counted(arm, flops=1200)

    machine = Machine(cells)
    machine.leaves_daemon = True

    (trial,) = run(machine, ["a"], max_pairs=3, policies={"a": EXACTLY}).trials

    assert (trial.word, trial.by) == ("FAIL", "counts")
    assert trial.reason == (
        "flops 1.00 k -> 1.20 k (+20.0 %), allowed 0 %; both arms want one port, file, device or "
        "daemon: launch after launch, not round by round"
    )


def test_an_arm_whose_allocator_waited_for_memory_is_run_without_the_other(run: Run) -> None:
    def retries(name: str, arm: str, number: int) -> CellRun:
        is_short = number == 1 and arm == "base"
        return dataclasses.replace(
            timed(0.001), record={"counts": {"allocator_retries": int(is_short)}}
        )

    machine = Machine(retries)
    judgement = run(machine, ["big"], max_pairs=3)

    assert words(judgement) == {"big": "PASS"}
    assert judgement.trials[0].reason == _ONE_BY_ONE
    assert [plan.one_by_one for plan in machine.plans] == [frozenset(), *[frozenset({"big"})] * 2]


def test_a_cell_that_hides_waits_in_the_other_arms_turns_is_run_without_that(run: Run) -> None:
    def hides(name: str, arm: str, number: int) -> CellRun:
        return dataclasses.replace(timed(0.001), hides_waits=arm == "head" and name == "waiting")

    machine = Machine(hides)
    judgement = run(machine, ["waiting", "working"], max_pairs=3)

    assert words(judgement) == {"waiting": "PASS", "working": "PASS"}
    assert [trial.reason for trial in judgement.trials] == [
        f"its threads or loader workers go on, or wait on, in the other arm's turns: {_NOT_BESIDE}",
        None,
    ]
    waiting = frozenset({"waiting"})
    assert [plan.one_by_one for plan in machine.plans] == [frozenset(), waiting, waiting]


def test_a_cell_that_is_too_large_for_one_arm_is_an_error(run: Run) -> None:
    machine = slower_by(big=0.0)
    machine._cells = lambda name, arm, number: ended("failed", _FULL)

    judgement = run(machine, ["big"], max_pairs=3)

    assert words(judgement) == {"big": "ERROR"}
    assert judgement.num_pairs == 2
    assert judgement.trials[0].reason == f"both arms failed: {_FULL}"


def test_arms_that_one_daemon_may_have_served_are_run_again_launch_after_launch(run: Run) -> None:
    machine = slower_by(a=0.0, b=0.0)
    machine.leaves_daemon = True

    for trial in run(machine, ["a", "b"], max_pairs=3).trials:
        assert (trial.word, len(trial.raw)) == ("PASS", 2)
        assert "one port, file, device or daemon: launch after launch" in (trial.reason or "")
    assert [plan.is_apart for plan in machine.plans] == [False, True, True]


@pytest.mark.parametrize("hangs", [False, True])
def test_arms_that_get_no_further_are_tried_once_more_launch_after_launch(
    run: Run, hangs: bool
) -> None:
    """One may hold what the other waits for; a cell that hangs alone too costs no other cell."""

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        names = machine.names[-1]
        is_stuck = "held" in names and (hangs or not machine.plans[-1].is_apart)
        machine.failure = "no progress for 30 s\n  | held.py" if is_stuck else None
        is_reached = not is_stuck or names.index(name) < names.index("held")
        return timed(1.0) if is_reached else None

    machine = Machine(cells)

    held, free = run(machine, ["held", "free"], max_pairs=5).trials

    assert (held.word, free.word) == ("INVALID" if hangs else "PASS", "PASS")
    assert [plan.is_apart for plan in machine.plans[:3]] == [False, True, not hangs]


def test_a_budget_that_ends_before_a_second_try_tells_how_the_first_failed(
    run: Run, now_s: list[float]
) -> None:
    def fails(name: str, arm: str, number: int) -> CellRun:
        now_s[0] += 5.0
        return ended("failed", f"OSError: [Errno 98] Address already in use ({arm})")

    budget = Budget(max_pairs=64, max_s=15.0, timeout_s=30.0)

    (trial,) = run(Machine(fails), ["a"], budget=budget).trials

    assert trial.word == "INCONCLUSIVE"
    assert (trial.reason or "").endswith(
        "; in the last pair it failed: OSError: [Errno 98] Address already in use (base)"
    )


def test_the_cells_of_a_file_are_neighbours_in_each_pair_and_in_a_random_order(run: Run) -> None:
    machine = Machine(lambda name, arm, number: timed(1.0))
    names = [f"{file}.py::test_{number}" for number in range(4) for file in "ab"]

    run(machine, names, max_pairs=3)

    for order in machine.names:
        files = [name[0] for name in order]
        assert files in (["a"] * 4 + ["b"] * 4, ["b"] * 4 + ["a"] * 4)
    assert len({tuple(order) for order in machine.names}) > 1


@pytest.mark.parametrize(
    "why",
    [
        "OSError: [Errno 98] Address already in use",
        "ConnectionError: Tried to launch distributed communication on port `29500`, but another "
        "process is utilizing it. Please specify a different port",
        "RuntimeError: Port 6006 is already in use",
        "E   ValueError: port 6379 is in use by another program",
        "RuntimeError: driver failed: Bind for 0.0.0.0:8080 failed: port is already allocated",
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "FileExistsError: [Errno 17] File exists: '/prices'",
        "psycopg.errors.DuplicateDatabase: database shop already exists",
        "its pytest ended early with exit code 3\n"
        "  | INTERNALERROR> OSError: [Errno 98] Address already in use",
        "perfsuite.errors.WorkloadError: train: no optimizer stepped in it, and it printed "
        "nothing, for 1200 s (ten times --perf-timeout); its last words: waiting",
    ],
)
def test_arms_that_want_what_one_alone_can_have_run_launch_after_launch(run: Run, why: str) -> None:
    def cells(name: str, arm: str, number: int) -> CellRun:
        if not machine.plans[-1].is_apart and arm == "head":
            return ended("failed", why)
        return timed(1.0)

    machine = Machine(cells)

    (trial,) = run(machine, ["a"], max_pairs=3).trials

    assert [plan.is_apart for plan in machine.plans[:2]] == [False, True]
    assert trial.word == "PASS"
    assert "launch after launch" in (trial.reason or "")


@pytest.mark.parametrize(
    "why",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: '/home/me/my-lock/prices.csv'",
        "assert lock == 3",
        "KeyError: 'port', although the old loader is in use",
        "ValueError: the port of entry has 3 samples; another column is used by the model",
        "ValueError: port 80 is not in use",
        "its pytest ended early with exit code 4\n  | >       with lock:\n  | rootdir: /my-license"
        "\n  | E       ValueError: no price in /my-license/a.csv",
    ],
)
def test_a_path_or_source_that_names_a_lock_is_nothing_that_the_other_arm_holds(
    run: Run, why: str
) -> None:
    machine = Machine(lambda name, arm, number: ended("failed", why))

    (trial,) = run(machine, ["a"], max_pairs=3).trials

    assert (trial.word, len(machine.plans)) == ("ERROR", 1)


def test_a_failure_beside_other_cells_says_that_launches_run_them_in_another_order(
    run: Run,
) -> None:
    quiet = slower_by(alone=0.0, before=0.0)._cells
    machine = Machine(
        lambda name, arm, number: (
            ended("failed", "assert 0 > 0") if name == "alone" else quiet(name, arm, number)
        )
    )

    after, before = run(machine, ["alone", "before"], max_pairs=3).trials

    assert (after.word, before.word, before.reason) == ("ERROR", "PASS", None)
    assert after.reason == (
        "both arms failed: assert 0 > 0; where it passes in a session of yours: launches run cells "
        "in random order, some left out, so a test must not need what another has stored"
    )


def test_a_budget_in_which_no_pairs_can_decide_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    budget = Budget(max_pairs=8, max_s=150.0, timeout_s=30.0)
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    judgement = run(slower_by(a=0.0, b=0.0), ["a", "b"], budget=budget, say=said.append)

    assert judgement.num_pairs == 1
    for trial in judgement.trials:
        assert trial.word == "INCONCLUSIVE"
        assert "pairs are the fewest that decide" in (trial.reason or "")
    assert "pairs are the fewest that decide" in said[1]


def test_a_launch_that_was_killed_is_run_once_more_one_by_one(run: Run) -> None:
    machine = slower_by(big=0.0)
    machine._cells = lambda name, arm, number: None
    machine.failure = "its pytest ended early with signal 9"

    judgement = run(machine, ["big"], max_pairs=3)

    assert words(judgement) == {"big": "INVALID"}
    assert [plan.one_by_one for plan in machine.plans] == [frozenset(), frozenset({"big"})]


def test_a_cell_that_outgrew_its_core_is_run_again_on_all_of_them(run: Run) -> None:
    machine = slower_by(serial=0.0, parallel=0.0)
    quiet = machine._cells

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        found = quiet(name, arm, number)
        is_late = name == "parallel" and arm == "base" and not machine.plans[-1].unpinned
        return dataclasses.replace(found, outgrew_core=is_late) if found else None

    machine._cells = cells

    judgement = run(machine, ["serial", "parallel"], max_pairs=3)

    assert words(judgement) == {"serial": "PASS", "parallel": "PASS"}
    assert [plan.unpinned for plan in machine.plans] == [frozenset(), *[{"parallel"}] * 2]
    assert {trial.name: len(trial.raw) for trial in judgement.trials} == {
        "serial": 2,
        "parallel": 2,
    }


def test_a_cell_whose_threads_work_beside_the_other_arm_is_run_without_it_or_inconclusive(
    run: Run,
) -> None:
    machine = slower_by(busy=0.0, ending=0.0, idle=0.0, short=0.0)
    quiet = machine._cells
    beside_s = {"busy": 0.011, "ending": 0.011, "idle": 0.009, "short": 0.0009}

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        found = quiet(name, arm, number)
        turns_s = 0.001 if name == "short" else 1.0
        has_ended = name == "ending" and name in machine.plans[-1].one_by_one
        background_s = beside_s[name] if arm == "head" and not has_ended else 0.0
        changes = {"turns_s": turns_s, "background_s": background_s}
        return dataclasses.replace(found, **changes) if found else None

    machine._cells = cells

    judgement = run(machine, [*beside_s], max_pairs=3)

    passed = dict.fromkeys(("ending", "idle", "short"), "PASS")
    assert words(judgement) == {"busy": "INCONCLUSIVE", **passed}
    busy = judgement.trials[0]
    assert busy.reason == (
        "threads of the head arm worked for 0.011 s while the other arm had its turns, beside 1 s "
        "of its own, so they disturbed its timing; start such threads in the test that needs them, "
        "and end them there"
    )
    assert [plan.one_by_one for plan in machine.plans][:2] == [frozenset(), {"busy", "ending"}]


def with_losses(machine: Machine, **heads: tuple[float, ...]) -> Machine:
    """Let launches record losses: the base's, and head's of each cell."""
    quiet = machine._cells

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        found = quiet(name, arm, number)
        losses = [0.9, 0.8137] if arm == "base" else [*heads[name]]
        return dataclasses.replace(found, record={"losses": losses}) if found else None

    machine._cells = cells
    return machine


def test_a_change_of_the_mathematics_is_told_and_fails_a_cell_where_that_is_asked(run: Run) -> None:
    heads = {"same": (0.9, 0.8137), "changed": (0.9, 0.7885), "silent": (), "slow": ()}
    names = list(heads)
    changes = {
        "same": "same bits",
        "changed": "changed: loss at step 2 0.8137 -> 0.7885",
        "silent": "cannot be told: no loss of head is known",
        "slow": "cannot be told: no loss of head is known",
    }
    comparable = dataclasses.replace(USUAL, slacks=({},))
    strict = dataclasses.replace(comparable, refuses_numerics_change=True)

    for policy, expected in (
        (comparable, {"same": "PASS", "changed": "PASS", "silent": "PASS", "slow": "FAIL"}),
        (strict, {"same": "PASS", "changed": "FAIL", "silent": "INCONCLUSIVE", "slow": "FAIL"}),
    ):
        machine = with_losses(slower_by(same=0.0, changed=0.0, silent=0.0, slow=0.2), **heads)
        judgement = run(machine, names, max_pairs=3, policies=dict.fromkeys(names, policy))

        assert words(judgement) == expected
        assert {one.name: one.numerics_change for one in judgement.trials} == changes
        by = {one.name: one.by for one in judgement.trials}
        decided = "numerics" if policy is strict else "pairs"
        assert by == {"same": "pairs", "changed": decided, "silent": decided, "slow": "pairs"}


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_cell_that_passes_by_an_earlier_sessions_pairs_has_a_second_launch_for_its_numbers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_strict: bool
) -> None:
    heads = {"same": (0.9, 0.8137), "changed": (0.9, 0.7885), "broken": (0.9, 0.7885)}
    machine = with_losses(slower_by(same=0.0, changed=0.0, broken=0.0), **heads)
    policy = dataclasses.replace(USUAL, slacks=({},), refuses_numerics_change=is_strict)
    policies = dict.fromkeys(heads, policy)
    with monkeypatch.context() as patch:
        clock = itertools.count(0.0, 100.0)
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        budget = Budget(max_pairs=3, max_s=150.0, timeout_s=30.0)
        first = run(machine, [*heads], budget=budget, policies=policies)
    KeptPairs(tmp_path / "pairs.json", "base", "head").write(first.trials)
    kept = KeptPairs(tmp_path / "pairs.json", "base", "head").cells
    machine.names.clear()
    passing = machine._cells

    def fails_later(name: str, arm: str, number: int) -> CellRun | None:
        found = passing(name, arm, number)
        fails = (name, arm, number) == ("broken", "head", 2)
        return dataclasses.replace(found, outcome="failed") if found and fails else found

    machine._cells = fails_later

    rerun = run(machine, [*heads], max_pairs=3, kept=kept, policies=policies)

    changed, unknown = ("FAIL", "INCONCLUSIVE") if is_strict else ("PASS", "PASS")
    assert words(rerun) == {"same": "PASS", "changed": changed, "broken": unknown}
    assert [sorted(names) for names in machine.names] == [sorted(heads), ["broken", "changed"]]
    assert {one.name: one.numerics_change for one in rerun.trials} == {
        "same": "same bits",
        "changed": "changed: loss at step 2 0.8137 -> 0.7885",
        "broken": "cannot be told: a second launch of it failed",
    }
    assert all((one.reason, len(one.pairs)) == (None, 2) for one in rerun.trials)


def test_a_smaller_step_of_ones_own_is_not_compared_unless_it_computes_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {  # flops and losses of head; the base has 100
        "same": (80, [0.9, 0.8], None),
        "less": (80, [0.9, 0.7], None),
        "unknown": (80, [], None),
        "hidden": (None, [0.9, 0.7], None),
        "compiled": (None, [0.9, 0.8], None),
        "still": (80, [0.9, 0.8], None),
        "regrouped": (80, [0.9, 0.8], None),
        "slow": (80, [0.9, 0.7], None),
        "more_else": (100, [0.9, 0.7], None),
        "recipe": (80, [0.9, 0.7], {}),
    }
    machine = slower_by(**{name: 0.2 if name == "slow" else -0.1 for name in heads})
    quiet = machine._cells

    def cells(name: str, arm: str, number: int) -> CellRun | None:
        found = quiet(name, arm, number)
        flops, losses, recipe = heads[name] if arm == "head" else (100, [0.9, 0.8], heads[name][2])
        counts = dict.fromkeys(Counts.__struct_fields__) | {"flops": flops}
        record = {"losses": losses, "recipe": recipe, "counts": counts, "workload": "train"}
        if name == "still":  # weights that two steps move by less than rounding
            record["weights"] = [[[3, 3.0, 5.0 if arm == "base" else 5.000001]]] * 2
        if name == "regrouped":
            digests = [[3, 3.0, 5.0], [2, 1.0, 2.0]]
            record["weights"] = [digests if arm == "base" else digests[::-1]] * 2
        return dataclasses.replace(found, record=record) if found else None

    machine._cells = cells
    policies = dict.fromkeys(heads, dataclasses.replace(USUAL, slacks=({},)))

    judgement = run(machine, list(heads), max_pairs=3, policies=policies)

    assert words(judgement) == {
        "same": "IMPROVED",
        "less": "INVALID",
        "unknown": "INVALID",
        "hidden": "INVALID",
        "compiled": "IMPROVED",
        "still": "INVALID",
        "regrouped": "INVALID",
        "slow": "FAIL",
        "more_else": "IMPROVED",
        "recipe": "IMPROVED",
    }
    reasons = {trial.name: trial.reason for trial in judgement.trials}
    assert reasons["less"] == (
        "flops 100 -> 80 (-20.0 %), and nothing shows that a step still trains as "
        "much (changed: loss at step 2 0.8 -> 0.7), so that times do not compare; rename the "
        "test if that is intended"
    )
    assert "(cannot be told: no loss of head is known)" in str(reasons["unknown"])
    unmoved = "(rounding, but a step moves nearly all weights by too little to tell)"
    assert unmoved in str(reasons["still"])
    assert "(same bits, but optimizers hold the par" in str(reasons["regrouped"])
    assert str(reasons["hidden"]).startswith(
        "flops is not available of head, so it is not compared, and nothing shows that a step "
    )
    # One pair shows no change of the mathematics.
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    budget = Budget(max_pairs=8, max_s=150.0, timeout_s=30.0)
    early = run(machine, ["less"], budget=budget, policies=policies)
    assert "one launch of the base does not" in str(early.trials[0].numerics_change)
    assert words(early) == {"less": "INCONCLUSIVE"}
