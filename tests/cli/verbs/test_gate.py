"""The verb `gate`: what it asks for, what it prints and writes, what it ends in."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import call_verb
from gated_repository import CLOCK, ONE_CELL, SHOP, Repository
from json_schemas import assert_valid
from tiny_suites import FEW_PLUGINS

from perfsuite.cli import app
from perfsuite.cli.verbs import gate as gate_module
from perfsuite.gate.common_cells import Leniency
from perfsuite.gate.judge.trial import Budget, Judgement
from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import GateResult
from perfsuite.records.verdict import CellVerdict, Explanation
from perfsuite.stats.evidence import Pair
from perfsuite.stats.sequential import Rule, decide
from perfsuite.system.timing_lock import TimingLock

PASSED = CellVerdict(
    name="b.py::same",
    word="PASS",
    by="pairs",
    ratio=1.01,
    interval=(0.99, 1.02),
    num_pairs=3,
    detectable=0.03,
    raw=((1.0, 1.01), (1.0, 1.02), (1.0, 1.0)),
)
FAILED = CellVerdict(
    name="b.py::slow",
    word="FAIL",
    by="pairs",
    ratio=1.2,
    mean_ratio=1.25,
    interval=(1.1, 1.3),
    num_pairs=3,
    detectable=0.03,
    tolerance=0.02,
    limit=0.05,
    explanation=Explanation(
        moved_stage="load",
        stages={"load": (0.001, 0.002)},
        counts={"ops": (3, 4)},
        operators=({"name": "a.py:f", "calls": (1, 1), "self_s": (0.001, 0.002)},),
    ),
    raw=((1.0, 1.2),) * 3,
    mean_ratios=(1.25,) * 3,
    errors=(0.004, None, 0.004),
    firsts=("head", "base", "base"),
)
UNKNOWN = CellVerdict(
    name="b.py::unknown",
    word="INCONCLUSIVE",
    by="pairs",
    ratio=1.0,
    interval=(0.0, math.inf),
    num_pairs=1,
    detectable=math.inf,
    reason="the time was up",
    raw=((1.0, 1.0),),
)
NEW = CellVerdict(name="b.py::new", word="NEW", by="collection", reason="the base has no such cell")
BROKEN = CellVerdict(name="b.py::broken", word="ERROR", by="pairs", reason="OSError: disk full")
ARMS = {"head": "main at 1a2b3c4", "base": "HEAD~1"}


def result(
    *cells: CellVerdict,
    refusal: str | None = None,
    is_advisory: bool = False,
    root: Path = Path(),
) -> GateResult:
    leniency = Leniency(is_advisory=is_advisory)
    judgement = Judgement(trials=(), num_pairs=3, wall_s=2.4)
    return GateResult(
        cells=tuple(map(leniency.mark, cells)),
        refusal=refusal,
        differs=ARMS,
        leniency=leniency,
        judgement=judgement if cells and refusal is None else None,
        root=root,
        seed=7,
    )


class Gate:
    """The verb over a result that is made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.requests: list[GateRequest] = []

    def __call__(self, *arguments: str, found: GateResult | None = None) -> int:
        """Return what the command line ends in."""

        def run_gate(request: GateRequest, *, say: Any, machine: TimingLock) -> GateResult:
            self.requests.append(request)
            assert isinstance(machine, TimingLock)
            say("comparing")
            return found or result(PASSED)

        self._patch.setattr(gate_module, "run_gate", run_gate)
        return call_verb("gate", *arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gate:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b", "benchmarks"):
        (tmp_path / name).touch()
    return Gate(monkeypatch)


# --- what it asks for ---


def test_without_options_the_contracts_defaults_hold(gate: Gate, tmp_path: Path) -> None:
    gate("benchmarks")

    (request,) = gate.requests
    assert (request.command.folder, request.command.arguments) == (tmp_path, ("benchmarks",))
    assert (request.tolerance, request.limit, request.floor_s) == (None, 0.05, None)
    assert request.typed == frozenset()
    assert (request.budget.max_pairs, request.budget.max_s) == (40, 1800.0)
    assert (request.base, request.base_dir, request.base_python) == (None, None, None)
    assert request.base_environment == {}
    assert (request.refuses_numerics_change, request.is_advisory) == (False, False)
    assert 0 <= request.seed < 2**32


def test_every_option_reaches_the_session(gate: Gate, tmp_path: Path) -> None:
    gate(
        *("a.py", "b::c", "-k", "lenet and not ddp", "--base", "v1", "--base-env", "A=1=2"),
        *("--base-env", "B=", "--tolerance", "1%", "--limit", "0.03", "--max-pairs", "8"),
        *("--max-minutes", "0.5", "--seed", "5", "--json", "gate.json", "--base-build", "make"),
        *("--numerics-change", "fail", "--timeout", "900", "--policy", "advisory"),
    )

    (request,) = gate.requests
    assert request.command.arguments == ("a.py", "b::c", "-k", "lenet and not ddp")
    assert (request.base, request.base_build, request.seed) == ("v1", "make", 5)
    assert request.base_environment == {"A": "1=2", "B": ""}
    assert (request.tolerance, request.limit) == (0.01, 0.03)
    assert request.typed == {"tolerance", "limit"}
    assert request.budget == Budget(max_pairs=8, max_s=30.0, timeout_s=900.0)
    assert request.outputs == (Path("gate.json"),)
    assert request.refuses_numerics_change
    assert Leniency.of(request).is_advisory


def test_what_a_change_of_the_mathematics_does_is_one_of_two_words(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate("--numerics-change", "refuse") == 2

    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "'refuse' is not one of 'tell', 'fail'" in said
    assert gate.requests == []


def test_an_interpreter_is_found_from_here_since_launches_start_elsewhere(
    gate: Gate, tmp_path: Path
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "python").symlink_to(sys.executable)

    gate("--base-python", "old/python", "--base-dir", "elsewhere")

    (request,) = gate.requests
    assert request.base_python == str(tmp_path / "old" / "python")
    assert request.base_dir == Path("elsewhere")


# --- what it prints and ends in ---


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (result(PASSED), 0),
        (result(PASSED, NEW), 0),
        (result(FAILED, UNKNOWN, PASSED), 10),
        (result(UNKNOWN, PASSED), 11),
        (result(NEW), 13),
        (result(), 13),
        (result(refusal="there is no base"), 12),
    ],
)
def test_the_exit_code_is_that_of_the_gravest_verdict(
    gate: Gate, found: GateResult, code: int
) -> None:
    assert gate("--json", "gate.json", found=found) == code
    assert json.loads(Path("gate.json").read_text())["exit_code"] == code


@pytest.mark.parametrize(
    ("found", "code", "would_have"),
    [
        (result(FAILED, UNKNOWN, PASSED, is_advisory=True), 0, 10),
        (result(UNKNOWN, PASSED, is_advisory=True), 0, 11),
        (result(refusal="there is no base", is_advisory=True), 0, 12),
        (result(NEW, is_advisory=True), 0, 13),
        (result(is_advisory=True), 0, 13),
        (result(PASSED, is_advisory=True), 0, None),
        (result(FAILED, BROKEN, is_advisory=True), 1, None),
    ],
)
def test_an_advisory_policy_turns_10_to_13_into_0_and_says_so_last(
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
    found: GateResult,
    code: int,
    would_have: int | None,
) -> None:
    assert gate("--json", "gate.json", found=found) == code

    document = json.loads(Path("gate.json").read_text())
    assert document["exit_code"] == code
    policies = {"b.py::broken": None}
    for cell in document["cells"]:
        assert cell["policy"] == policies.get(cell["id"], "advisory")
    last = capsys.readouterr().out.splitlines()[-1]
    if would_have is None:
        assert "advisory: " not in last
    else:
        assert last == f"advisory: would have ended in {would_have}"


def test_a_quarantined_cell_is_shown_and_has_no_say_in_the_exit_code(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = msgspec.structs.replace(FAILED, policy="quarantined", accepted=("noisy",))

    assert gate("--markdown", "gate.md", found=result(noisy, PASSED)) == 0
    assert gate(found=result(noisy, NEW)) == 13
    assert gate(found=result(noisy, UNKNOWN)) == 11
    assert gate(found=result(noisy, is_advisory=True)) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "b.py::slow FAIL quarantined +20.0 % +10.0 % and +30.0 % 3" in lines
    assert "accepted: noisy" in lines
    assert lines[-1] == "advisory: would have ended in 13"
    markdown = Path("gate.md").read_text().splitlines()
    assert markdown[0] == "**PASS**: 2 cells&#58; 1 FAIL quarantined, 1 PASS"
    assert markdown[2:5] == [
        "| cell | verdict | policy | change | between | step |",
        "| :-- | :-- | :-- | --: | :-- | --: |",
        "| `b.py::slow` | FAIL | quarantined | +20.0 % | +10.0 % and +30.0 % | 1.20 s |",
    ]


def test_verdicts_are_printed_and_progress_goes_to_the_other_stream(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    gate(found=result(FAILED, NEW))

    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:2] == ["head: main at 1a2b3c4", "base: HEAD~1"]
    assert "b.py::slow FAIL +20.0 % +10.0 % and +30.0 % 3" in lines
    assert "b.py::slow: moved most: load 1.00 ms -> 2.00 ms (+100.0 %); counts: ops 3 -> 4" in lines
    assert "b.py::new: the base has no such cell" in lines
    assert lines[-1] == "3 pairs in 2 s, seed 7"
    assert err == "comparing\n"


def test_on_github_a_failure_is_told_beside_its_line(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("import pytest\ndef slow(benchmark): ...\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))

    gate(found=result(FAILED, NEW, root=tmp_path / "sub"))

    told = [line for line in capsys.readouterr().out.splitlines() if "::" in line[:2]]
    assert told == [
        "::error file=sub/b.py,line=2::b.py::slow: FAIL: +20.0 %25 against the base, between "
        "+10.0 %25 and +30.0 %25 (3 pairs); moved most: load 1.00 ms -> 2.00 ms (+100.0 %25); "
        "counts: ops 3 -> 4; tolerance 2.0 %25; limit 5.0 %25"
    ]


def test_a_refusal_is_printed_without_a_table(
    gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    gate(found=result(refusal="there is no base"))

    assert capsys.readouterr().out.splitlines() == [
        "head: main at 1a2b3c4",
        "base: HEAD~1",
        "not compared: there is no base",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--limit", "1%", "--tolerance", "2%"),
            "--tolerance is 2%, above the limit of 1%; use a smaller one, or a larger --limit",
        ),
        (("--tolerance", "200%"), "--tolerance is 200%; use less than 100%"),
        (("--tolerance", "much"), "--tolerance is 'much'; use a ratio such as 2%"),
        (("--limit", "-5%"), "--limit is '-5%'; use a ratio such as 2%"),
        (("--limit", "5"), "--limit is '5'; use a ratio such as 2%"),
        (("--base-env", "NAME"), "--base-env is 'NAME'; use KEY=VALUE"),
        (("--base-env", "=value"), "--base-env is '=value'; use KEY=VALUE"),
        (
            ("--base-python", "no/python"),
            "--base-python is 'no/python', which is not a program; name an interpreter",
        ),
        (
            ("--base", "main", "--base-dir", "old"),
            "--base and --base-dir name two bases; give one of them",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_ends_in_2(
    gate: Gate, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert gate(*arguments) == 2
    assert capsys.readouterr() == ("", f"perfsuite: {message}\n")
    assert gate.requests == []


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(
    gate: Gate, capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    assert gate(option, str(tmp_path)) == 12
    assert capsys.readouterr() == ("", f"perfsuite: cannot write {tmp_path}: Is a directory\n")
    assert gate.requests == []


@pytest.mark.parametrize("arguments", [("--max-pairs", "2"), ("--max-minutes", "-1")])
def test_a_budget_that_cannot_decide_anything_ends_in_2(
    gate: Gate, arguments: tuple[str, ...]
) -> None:
    assert gate(*arguments) == 2
    assert gate.requests == []


def test_a_json_file_that_cannot_be_written_ends_in_12(
    gate: Gate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    assert gate("--json", "file/gate.json") == 12
    assert capsys.readouterr().err.splitlines()[-1].startswith("perfsuite: cannot write ")


# --- the Markdown ---


def test_the_markdown_has_the_verdict_first_and_explanations_folded(gate: Gate) -> None:
    hostile = msgspec.structs.replace(NEW, name="b.py::new[a|b<script>]")

    code = gate("--markdown", "gate.md", found=result(PASSED, FAILED, hostile))

    assert code == 10
    assert gate.requests[0].outputs == (Path("gate.md"),)
    assert Path("gate.md").read_text().splitlines() == [
        "**FAIL**: 3 cells&#58; 1 FAIL, 1 NEW, 1 PASS",
        "",
        "| cell | verdict | change | between | step |",
        "| :-- | :-- | --: | :-- | --: |",
        "| `b.py::slow` | FAIL | +20.0 % | +10.0 % and +30.0 % | 1.20 s |",
        "| <code>b.py&#58;&#58;new&#91;a&#124;b&#60;script&#62;&#93;</code> | NEW | - | - | - |",
        "| `b.py::same` | PASS | +1.0 % | -1.0 % and +2.0 % | 1.01 s |",
        "",
        "<details><summary>Explanation</summary>",
        "",
        "- `b.py::slow`: moved most&#58; load 1.00 ms -&#62; 2.00 ms (+100.0 %); "
        "counts&#58; ops 3 -&#62; 4",
        "- <code>b.py&#58;&#58;new&#91;a&#124;b&#60;script&#62;&#93;</code>: "
        "the base has no such cell",
        "",
        "</details>",
        "",
        "<details><summary>What was compared</summary>",
        "",
        "- head&#58; main at 1a2b3c4",
        "- base&#58; HEAD&#126;1",
        "",
        "</details>",
        "",
    ]


def test_a_markdown_file_that_cannot_be_written_ends_in_12(
    gate: Gate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    assert gate("--markdown", "file/gate.md") == 12
    assert capsys.readouterr().err.splitlines()[-1] == (
        "perfsuite: cannot write file/gate.md: Not a directory"
    )


# --- the JSON ---


def document(gate: Gate, found: GateResult) -> dict[str, Any]:
    gate("--json", "gate.json", found=found)
    loaded: dict[str, Any] = json.loads(Path("gate.json").read_text())
    return loaded


def test_the_json_has_the_keys_of_the_contract(gate: Gate) -> None:
    found = document(gate, result(FAILED))

    assert found.keys() >= {"schema", "cells", "seed", "arms", "exit_code"}
    assert (found["schema"], found["seed"], found["arms"]) == (1, 7, ARMS)
    assert found["cells"] == [
        {
            "id": "b.py::slow",
            "word": "FAIL",
            "by": "pairs",
            "ratio": 1.2,
            "interval": [1.1, 1.3],
            "pairs": 3,
            "detectable": 0.03,
            "tolerance": 0.02,
            "limit": 0.05,
            "mean_ratio": 1.25,
            "numerics_change": None,
            "policy": None,
            "reason": None,
            "compared_with": None,
            "explanation": {
                "moved_stage": "load",
                "stages": {"load": [0.001, 0.002]},
                "counts": {"ops": [3, 4]},
                "operators": [{"name": "a.py:f", "calls": [1, 1], "self_s": [0.001, 0.002]}],
            },
            "raw": [[1.0, 1.2]] * 3,
            "mean_ratios": [1.25] * 3,
            "errors": [0.004, None, 0.004],
            "first": ["head", "base", "base"],
            "asked": {},
            "accepted": [],
        }
    ]


def test_what_is_not_known_is_null_and_never_infinite(gate: Gate) -> None:
    unknown, new = document(gate, result(UNKNOWN, NEW))["cells"]

    assert (unknown["interval"], unknown["detectable"]) == ([0.0, None], None)
    assert (unknown["reason"], unknown["explanation"]) == ("the time was up", None)
    numbers = ("ratio", "interval", "detectable", "explanation")
    assert [new[name] for name in numbers] == [None] * 4
    assert (new["raw"], new["pairs"]) == ([], 0)


def test_a_refusal_has_no_cells_and_says_why(gate: Gate) -> None:
    found = document(gate, result(refusal="there is no base"))

    assert (found["cells"], found["refusal"]) == ([], "there is no base")
    assert (found["pairs"], found["wall_s"]) == (0, None)


# --- a real session ---


@pytest.mark.slow
def test_identical_code_passes_and_the_json_gives_the_verdict_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path / "shop")
    repository.write(shop=SHOP, benchmarks__work_clock=CLOCK, benchmarks__test_steps=ONE_CELL)
    repository.git("init", "--quiet", "--initial-branch=main")
    repository.commit()
    repository.write(shop=f"{SHOP}    # as before")
    repository.commit()
    monkeypatch.chdir(repository.path)
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(FEW_PLUGINS))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    arguments = (
        *("benchmarks", "--max-pairs", "4", "--seed", "9", "--json", "gate.json"),
        "--identical=judge",
    )
    monkeypatch.setattr(sys, "argv", ["perfsuite", "gate", *arguments])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 0
    found = json.loads((repository.path / "gate.json").read_text())
    assert_valid("gate", found)
    (cell,) = found["cells"]
    assert (cell["id"], cell["word"]) == ("benchmarks/test_steps.py::test_price", "PASS")
    assert (found["seed"], found["exit_code"]) == (9, 0)
    pairs = [
        Pair(log_ratio=math.log(head_s / base_s), mean_log_ratio=math.log(mean), error=error)
        for (base_s, head_s), mean, error in zip(
            cell["raw"], cell["mean_ratios"], cell["errors"], strict=True
        )
    ]
    asked = {name: value for name, value in cell["asked"].items() if name != "accepted_slowdown"}
    decision = decide(pairs, Rule(**asked))
    assert (decision.word, decision.ratio) == (cell["word"], cell["ratio"])
    assert decision.mean_ratio == cell["mean_ratio"]
    assert list(decision.interval) == cell["interval"]
    assert repository.git("worktree", "list").count("\n") == 0


@pytest.mark.parametrize("verb", ["gate", "calibrate"])
def test_a_path_that_does_not_exist_is_a_mistake(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert call_verb(verb, "benchmrks/test_a.py::test_b") == 2

    assert capsys.readouterr().err == (
        "perfsuite: benchmrks/test_a.py::test_b does not exist; name files or folders with "
        "benchmarks\n"
    )
