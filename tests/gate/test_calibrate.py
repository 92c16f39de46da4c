"""Calibration over made-up judgements: what is planted, what is counted, what is said."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from command_line import call_verb
from json_schemas import assert_valid
from made_up_machine import Machine
from made_up_pairs import plain_pairs

from perfsuite.cli.verbs.calibrate import describe, to_document
from perfsuite.errors import WorkloadError
from perfsuite.gate import calibrate as calibrate_module
from perfsuite.gate.arms.arm import Arm, Launch, Suite
from perfsuite.gate.arms.command import Command
from perfsuite.gate.arms.launched.collected import CLOCK, policy_of
from perfsuite.gate.arms.num_rounds import PairCost
from perfsuite.gate.calibrate import CalibrationResult, Plant, calibrate
from perfsuite.gate.judge.trial import Budget, CellPolicy, Judgement, Trial
from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import HELD, GateResult
from perfsuite.records.verdict import CellVerdict, VerdictWord
from perfsuite.stats.evidence import Prior
from perfsuite.stats.sequential import Rule, decide

REQUEST = GateRequest(
    command=Command(folder=Path("/project"), arguments=("bench",)),
    budget=Budget(max_pairs=4, max_s=1e9, timeout_s=60.0),
    seed=3,
)
NOISE = (0.01, -0.01, 0.02, -0.02)


class Gate:
    """Judges made-up pairs: identical code has noise alone, planted code is slower by 20 %."""

    def __init__(self) -> None:
        self.planted: list[str | None] = []
        self.priors: list[Mapping[str, Prior]] = []
        self.word: VerdictWord | None = None
        self.refusal: str | None = None

    def __call__(self, request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        assert (request.base, request.heeds_exceptions, request.explains) == ("HEAD", False, False)
        text = request.head_environment.get("PERFSUITE_ARM_PLANTED")
        self.planted.append(text)
        self.priors.append(request.priors)
        trials = [self.trial_of(name, text) for name in ("a", "b")]
        return GateResult(
            cells=tuple(
                CellVerdict(name=one.name, word=one.word or "PASS", by=one.by) for one in trials
            ),
            refusal=self.refusal,
            differs={},
            judgement=Judgement(trials=tuple(trials), num_pairs=4, wall_s=9.0),
            seed=request.seed,
        )

    def trial_of(self, name: str, text: str | None) -> Trial:
        shift = 0.0 if text is None else 0.2
        policy = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
        rule = Rule(tolerance=0.02, limit=0.05, num_cells=2, max_pairs=4)
        trial = Trial(name=name, policy=policy, rule=rule)
        # A session as a whole is faster or slower than the one before it.
        shift += 0.005 * (-1) ** len(self.planted)
        trial.pairs = plain_pairs(shift + noise for noise in NOISE)
        trial.decision = decide(trial.pairs, rule)
        trial.word = self.word or ("PASS" if text is None else "FAIL")
        trial.by = "counts" if text == "leak" else "pairs"
        trial.raw = [(1.0, math.exp(shift + noise)) for noise in NOISE]
        trial.firsts = ["base", "head", "base", "head"]
        trial.costs = [
            PairCost(log_ratio=0.0, error=0.01, num_rounds=50, round_s=0.01, launch_s=1.0)
        ] * 4
        return trial


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Gate:
    arm = Arm(name="head", tree=Path("/project"), import_roots=(), pytest_arguments=())
    suite = Suite(
        cells={"a": {"fixture": "train_benchmark"}, "b": {"fixture": "train_benchmark"}},
        root=Path("/project"),
        inifile=None,
        pythonpath=(),
        python_files=(),
    )
    made_up = Gate()
    monkeypatch.setattr(calibrate_module, "find_top", lambda folder: folder)
    monkeypatch.setattr(calibrate_module, "is_dirty", lambda *_, **given: False)
    monkeypatch.setattr(calibrate_module, "collect", lambda _: Launch(arm=arm, suite=suite))
    monkeypatch.setattr(calibrate_module, "head_arm", lambda *_: arm)
    monkeypatch.setattr(calibrate_module, "run_gate", made_up)
    return made_up


def run(
    *plants: Plant,
    num_identical: int = 2,
    num_sessions: int = 2,
    machine: AbstractContextManager[object] = HELD,
) -> CalibrationResult:
    return calibrate(
        REQUEST,
        num_identical=num_identical,
        num_sessions=num_sessions,
        plants=plants,
        say=lambda _: None,
        machine=machine,
    )


def test_identical_code_is_judged_first_and_its_noise_is_known_to_the_rest(judge: Gate) -> None:
    result = run(Plant(ratio=0.05), Plant(in_recipe="precision=fp32"))

    assert judge.planted == [None, None, "0.05", "0.05", "precision=fp32", "precision=fp32"]
    assert [set(priors) for priors in judge.priors[:2]] == [set(), set()]
    assert [set(priors) for priors in judge.priors[2:]] == [{"a", "b"}] * 4
    assert result.noise["a"].num_pairs == 8
    assert result.noise["a"].round_sd == pytest.approx(0.01)
    assert result.noise["a"].order_effect == pytest.approx(-0.03, abs=2e-3)
    assert result.noise["a"].bias == pytest.approx(0.0, abs=1e-9)
    # The means lie nearer than their pairs explain, 0.005, which is no knowledge.
    assert result.noise["a"].bias_error == pytest.approx(result.noise["a"].sd / math.sqrt(8))


def test_the_lines_say_alarms_power_and_what_the_machine_supports(judge: Gate) -> None:
    lines = describe(run(Plant(ratio=0.05), Plant(in_recipe="precision=fp32")))

    cost = "4.0 pairs a cell, 9 s a session"
    assert lines[:3] == [
        f"false alarms: 0 of 2, below 77.6 % at 95 % confidence (cells: 4 PASS; 3.5{cost[3:]})",
        f"power at 5 %: 2 of 2 (cells: 4 FAIL; {cost})",
        f"precision=fp32 planted: 2 of 2 (cells: 4 FAIL; {cost})",
    ]
    assert lines[3].startswith("pair sd of a: 1.8")
    assert "rounds explain 1.0 %, launches 1.5 %; running first changes -3.00 %" in lines[3]
    assert lines[4].startswith("  the tightest that this machine supports: tolerance ")


def test_the_json_has_a_power_for_each_slowdown_and_verdicts_for_each_plant(judge: Gate) -> None:
    document = to_document(run(Plant(ratio=0.05), Plant(in_recipe="num_workers=0")))

    assert_valid("calibrate", json.loads(msgspec.json.encode({"schema": 1, **document})))
    assert document["pair_sd"] == pytest.approx(0.01825, abs=1e-4)
    assert document["session_sd"] == 0.0
    assert document["false_alarms"] == [0, 2]
    assert document["power"] == {"5 %": [2, 2]}
    assert document["verdicts"] == {
        "0 %": {"PASS": 4},
        "5 %": {"FAIL": 4},
        "num_workers=0": {"FAIL": 4},
    }
    assert document["noise"]["a"]["recommended"] is not None


@pytest.mark.parametrize("word", ["ERROR", "NO-BASELINE", "INVALID"])
def test_a_cell_without_a_measurement_cannot_be_calibrated_with(judge: Gate, word: str) -> None:
    judge.word = word

    with pytest.raises(WorkloadError, match=r"^a cannot be calibrated with: None$"):
        run()


def test_a_gate_that_compares_nothing_is_no_calibration(judge: Gate) -> None:
    judge.refusal = "there is no base"

    with pytest.raises(WorkloadError, match=r"^the gate compares nothing here: there is no base$"):
        run()


def test_code_that_is_not_heads_is_refused(judge: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_module, "is_dirty", lambda *_, **given: True)

    with pytest.raises(WorkloadError, match=r"^there are uncommitted changes, .*; commit them$"):
        run()

    monkeypatch.setattr(calibrate_module, "find_top", lambda folder: None)
    with pytest.raises(
        WorkloadError, match=r"^/project is not in a git .*; run 'git init', and commit$"
    ):
        run()
    assert judge.planted == []


def test_what_counts_find_is_distinguished_from_what_times_find(judge: Gate) -> None:
    lines = describe(run(Plant(in_recipe="leak")))

    assert lines[1].startswith("leak planted: 2 of 2 (cells: 4 FAIL by counts; ")


@pytest.mark.parametrize(
    ("fixture", "plant"),
    [("benchmark", Plant(in_recipe="leak")), ("loop_benchmark", Plant(in_recipe="precision=fp32"))],
)
def test_a_cell_without_a_recipe_has_nothing_to_plant_but_a_slowdown(
    judge: Gate, monkeypatch: pytest.MonkeyPatch, fixture: str, plant: Plant
) -> None:
    launch = calibrate_module.collect(calibrate_module.head_arm(REQUEST, None))
    assert launch.suite is not None
    item = SimpleNamespace(
        fixturenames=[fixture],
        iter_markers=lambda name: (),
        get_closest_marker=lambda name: None,
        config=SimpleNamespace(getoption=lambda name: CLOCK),
    )
    plain = policy_of(item)  # type: ignore[arg-type]
    cells = {"a": {"fixture": "train_benchmark"}, "plain": plain}
    launch.suite = dataclasses.replace(launch.suite, cells=cells)
    monkeypatch.setattr(calibrate_module, "collect", lambda _: launch)

    machine = Machine()

    with pytest.raises(WorkloadError) as raised:
        run(Plant(ratio=0.05), plant, machine=machine)

    assert not machine.was_held
    assert str(raised.value) == (
        f"{plant} can be planted in cells of train_benchmark alone, and plain is none; leave it "
        "out with -k, or plant a slowdown such as 5%"
    )
    assert judge.planted == []


def test_sessions_of_identical_code_are_counted_by_themselves(judge: Gate) -> None:
    result = run(Plant(ratio=0.05), num_identical=3, num_sessions=1)
    document = to_document(result)

    assert judge.planted == [None, None, None, "0.05"]
    assert document["false_alarms"] == [0, 3]
    assert document["power"] == {"5 %": [1, 1]}


def test_identical_code_alone_can_be_judged(judge: Gate) -> None:
    machine = Machine()

    result = run(Plant(ratio=0.05), num_identical=2, num_sessions=0, machine=machine)

    assert machine.was_held
    assert judge.planted == [None, None]
    assert result.planted == ()


@pytest.mark.parametrize("text", ["0%", "0.0", "nan%", "leek"])
def test_what_is_no_slowdown_cannot_be_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)

    assert call_verb("calibrate", "--planted", text) == 2

    assert capsys.readouterr().err == (
        f"perfsuite: --planted is '{text}'; use a slowdown such as 5%, FIELD=VALUE, leak or "
        "synchronization\n"
    )
