"""What a test of the gated session itself does to the verdicts: table, stamp and exit code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from perfsuite.errors import WriteError
from perfsuite.gate.baselines.accepted import Accepted, Quarantine
from perfsuite.gate.baselines.stored_verdict import History
from perfsuite.gate.common_cells import Leniency
from perfsuite.gate.judge.trial import CellPolicy, Judgement
from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import GateResult
from perfsuite.plugin.session import gate, saving
from perfsuite.records.verdict import CellVerdict
from perfsuite.report.model import report_on_runs
from perfsuite.report.runs import read_runs
from perfsuite.report.shards import merge_shards

SUITE = """
    import pytest

    def test_fine(benchmark):
        benchmark.pedantic(sum, args=([1, 2],), rounds=3)

    def test_other(benchmark):
        {other}
"""
FINE, OTHER, GONE = (f"test_inner.py::test_{name}" for name in ("fine", "other", "gone"))


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the pairs would say of each cell; the tests fill it."""
    found: dict[str, str] = {FINE: "PASS"}

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        cells = [
            CellVerdict(name=name, word=word, by="pairs", reason=f"the pairs say {word}")
            for name, word in found.items()
            if request.cells is None or name in request.cells or word in ("NEW", "VANISHED")
        ]
        policy = CellPolicy(tolerance=0.02, limit=request.limit, floor_s=0.0)
        return GateResult(
            cells=tuple(cells),
            differs={},
            policies=dict.fromkeys((FINE, OTHER), policy),
            leniency=Leniency.of(request),
            seed=request.seed,
        )

    monkeypatch.setattr(gate, "run_gate", run_gate)
    monkeypatch.setattr(saving, "probe_host", lambda: {"memory": 0.04})
    return found


def gated(
    pytester: pytest.Pytester, other: str = "benchmark(int)", *, options: Sequence[str] = ()
) -> pytest.RunResult:
    pytester.makepyfile(test_inner=SUITE.format(other=other))
    arguments = (".", "--benchmark-compare", "--benchmark-json=run.json", "--perf-gate=on")
    arguments += ("--benchmark-max-time=0.001",)
    return pytester.runpytest_inprocess(*arguments, *options, "-p", "no:cacheprovider")


def table(result: pytest.RunResult) -> dict[str, str]:
    """The word of each cell in the gate's table."""
    rows = [line.split() for line in result.outlines if line.startswith(" test_inner.py::")]
    return {row[0]: row[1] for row in rows}


def stamped(folder: Path) -> dict[str, str]:
    content: dict[str, dict[str, str]] = json.loads((folder / "run.json").read_text())["perfsuite"]
    return content["verdicts"]


def said(folder: Path) -> tuple[str | None, str]:
    """What a report says of the session."""
    runs = merge_shards(read_runs([folder / "run.json"]))
    summary = report_on_runs(runs).summary
    return summary.word, summary.text


@pytest.mark.parametrize("word", ["NEW", "PASS", "FAIL", "IMPROVED", "NO-BASELINE"])
def test_a_cell_whose_test_fails_here_is_an_error_whatever_its_pairs_said(
    pytester: pytest.Pytester, words: dict[str, str], word: str
) -> None:
    words[OTHER] = word

    result = gated(pytester, "raise RuntimeError('boom')")

    assert result.ret == 1
    assert table(result) == {FINE: "PASS", OTHER: "ERROR"}
    assert f"{OTHER}: head's test failed: RuntimeError: boom" in result.outlines
    assert stamped(pytester.path) == {FINE: "PASS", OTHER: "ERROR"}
    assert said(pytester.path) == ("ERROR", "2 cells: 1 ERROR, 1 PASS; 1 of its tests failed")


def test_a_failed_test_counts_beside_a_cell_that_is_slower_and_expected_to_fail(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    pytester.makepyfile(test_wrong="def test_wrong(): assert not 'right'")
    pytester.makeconftest("""
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                if item.name == "test_other":
                    item.add_marker(pytest.mark.xfail(reason="known"))
    """)
    words[OTHER] = "FAIL"

    result = gated(pytester)

    assert table(result) == {FINE: "PASS", OTHER: "FAIL"}
    assert result.ret == 1


def test_a_cell_that_fails_once_it_was_measured_is_an_error_in_its_record_too(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(autouse=True)
        def _left_behind(request):
            yield
            if request.node.name == "test_other":
                raise OSError("still open")
    """)
    words[OTHER] = "PASS"

    result = gated(pytester)

    assert result.ret == 1
    assert table(result) == {FINE: "PASS", OTHER: "ERROR"}
    assert f"{OTHER}: head's test failed in its teardown: OSError: still open" in result.outlines
    assert said(pytester.path) == ("ERROR", "2 cells: 1 ERROR, 1 PASS; 1 of its tests failed")


@pytest.mark.parametrize("word", ["VANISHED", "INVALID", "NO-BASELINE"])
def test_a_cell_that_was_never_measured_is_stamped_and_keeps_a_report_from_passing(
    pytester: pytest.Pytester, words: dict[str, str], word: str
) -> None:
    words[OTHER] = word

    result = gated(pytester, "pytest.skip('not here')")

    assert result.ret == 12
    assert stamped(pytester.path) == {FINE: "PASS", OTHER: word}
    assert said(pytester.path) == ("NO VERDICT", f"2 cells: 1 {word}, 1 PASS")


def test_a_cell_that_is_gone_is_stamped(pytester: pytest.Pytester, words: dict[str, str]) -> None:
    words |= {OTHER: "PASS", GONE: "VANISHED"}

    assert gated(pytester).ret == 12

    assert stamped(pytester.path) == {FINE: "PASS", OTHER: "PASS", GONE: "VANISHED"}
    assert said(pytester.path) == ("NO VERDICT", "3 cells: 1 VANISHED, 2 PASS")


def test_a_cell_that_neither_side_measures_keeps_nothing_from_passing(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    words[OTHER] = "SKIPPED"

    assert gated(pytester, "pytest.skip('not here')").ret == 0

    assert said(pytester.path) == ("PASS", "2 cells: 1 PASS, 1 SKIPPED")


@pytest.mark.parametrize(
    ("other", "word"), [("pytest.skip('not here')", "VANISHED"), ("return", "SKIPPED")]
)
def test_a_cell_left_to_the_screen_and_then_not_measured_goes_to_the_pairs(
    pytester: pytest.Pytester,
    words: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    word: str,
) -> None:
    words[OTHER] = word
    words[GONE] = "INVALID"
    monkeypatch.setattr(History, "can_screen", lambda self, name: name == OTHER)

    result = gated(pytester, other)

    assert result.ret == (12 if word == "VANISHED" else 0)
    assert table(result)[OTHER] == word


def test_a_cell_that_no_launch_has_is_invalid(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    result = gated(pytester)

    assert result.ret == 12
    assert table(result) == {FINE: "PASS", OTHER: "INVALID"}
    reason = f"{OTHER}: a launch of head with the same command line has no such cell"
    assert reason in result.outlines


def test_a_cell_that_its_launches_skip_and_the_session_measures_is_invalid(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    words[OTHER] = "SKIPPED"

    result = gated(pytester)

    assert result.ret == 12
    assert table(result) == {FINE: "PASS", OTHER: "INVALID"}
    reason = "this session measured it and its launches did not: the pairs say SKIPPED"
    assert f"{OTHER}: {reason}" in result.outlines


@pytest.mark.parametrize("is_held", [False, True])
def test_a_verdict_that_only_advises_lets_its_test_pass_and_is_a_property_of_it(
    pytester: pytest.Pytester,
    words: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    is_held: bool,
) -> None:
    words[OTHER] = "FAIL"
    if is_held:
        leave_open(monkeypatch)

    result = gated(pytester, options=("--perf-policy=advisory", "--junitxml=junit.xml"))

    assert result.ret == 0
    assert result.outlines[-1] == "advisory: would have ended in 10"
    result.assert_outcomes(passed=2)
    found = ElementTree.parse(pytester.path / "junit.xml").iterfind(".//testcase")
    assert {
        test.attrib["name"]: [
            (one.attrib["name"], one.attrib["value"]) for one in test.iter("property")
        ]
        for test in found
    } == {
        "test_fine": [("verdict", "PASS"), ("policy", "advisory")],
        "test_other": [("verdict", "FAIL"), ("policy", "advisory")],
    }
    assert said(pytester.path) == ("FAIL", "2 cells: 1 FAIL advisory, 1 PASS advisory")


@pytest.mark.parametrize(
    ("word", "other", "code"),
    [
        ("FAIL", "benchmark(int); assert not 'right'", 1),
        ("ERROR", "benchmark(int)", 1),
        ("PASS", "pytest.exit('enough', 2)", 2),
        ("INCONCLUSIVE", "benchmark(int)", 11),
        ("VANISHED", "pytest.skip('not here')", 12),
        ("FAIL", "pytest.exit('enough', 0)", 10),
    ],
)
def test_an_advisory_policy_turns_10_to_13_into_0_and_nothing_else(
    pytester: pytest.Pytester, words: dict[str, str], word: str, other: str, code: int
) -> None:
    words[OTHER] = word

    enforced = gated(pytester, other)
    advised = gated(pytester, other, options=("--perf-policy=advisory",))

    assert enforced.ret == code
    assert advised.ret == (0 if code >= 10 else code)
    told = [line for line in advised.outlines if line.startswith("advisory: ")]
    assert told == ([f"advisory: would have ended in {code}"] if code >= 10 else [])


def test_a_quarantined_cell_that_stored_runs_decide_counts_as_little_as_any(
    pytester: pytest.Pytester, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine = Quarantine(cell="*", reason="noisy", expires=date.max)
    judge = gate.run_gate

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        leniency = Leniency(Accepted(entries=(quarantine,)))
        return dataclasses.replace(judge(request, say=say), leniency=leniency)

    def screen(self: History, name: str, *_: object) -> CellVerdict:
        return CellVerdict(name=name, word="PASS", by="screen")

    monkeypatch.setattr(gate, "run_gate", run_gate)
    monkeypatch.setattr(History, "can_screen", lambda self, name: True)
    monkeypatch.setattr(History, "screen", screen)

    result = gated(pytester)

    assert result.ret == 13
    assert f"accepted: every cell is quarantined until {date.max}: noisy" in result.outlines
    assert said(pytester.path) == ("NOTHING COMPARED", "2 cells: 2 PASS quarantined")


def test_where_every_cell_is_deselected_an_advisory_session_ends_in_0(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    result = gated(pytester, options=("-k", "nothing", "--perf-policy=advisory"))

    assert result.ret == 0
    assert result.outlines[-1] == "advisory: would have ended in 13"


def test_where_head_leaves_no_cell_its_base_is_asked(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    words[GONE] = "VANISHED"

    result = gated(pytester, options=("-k", "nothing"))

    assert result.ret == 12
    assert table(result) == {GONE: "VANISHED"}
    assert (pytester.path / "results" / "run.json").exists()


def test_a_machine_that_is_refused_ends_an_advisory_session_in_0_and_in_words(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    result = gated(pytester, options=("--perf-require-gpus=99", "--perf-policy=advisory"))

    assert result.ret == 0
    assert result.outlines[-1] == "advisory: would have ended in 12"


def test_a_file_that_cannot_be_written_is_graver_than_nothing_to_compare(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    words |= {FINE: "NEW", OTHER: "NEW"}
    taken = pytester.path / "taken"
    taken.write_text("a file")

    result = gated(pytester, options=[f"--perf-report={taken}"])

    assert result.ret == 12
    assert f"perfsuite: cannot write {taken}/cells.jsonl: Not a directory" in result.outlines


def test_a_cell_that_is_never_reached_is_invalid(
    pytester: pytest.Pytester, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(History, "can_screen", lambda self, name: name == OTHER)
    pytester.makepyfile(test_a="import pytest\ndef test_a():\n    pytest.exit('enough', 0)\n")

    result = gated(pytester)

    assert result.ret == 12
    assert table(result) == {FINE: "PASS", OTHER: "INVALID"}
    reason = "it was selected, and the session ended before it had a verdict"
    assert f"{OTHER}: {reason}" in result.outlines


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_what_runs_no_test_is_refused(
    pytester: pytest.Pytester, words: dict[str, str], option: str
) -> None:
    result = gated(pytester, options=(option,))

    assert result.ret == 4
    result.stderr.fnmatch_lines(
        [f"ERROR: --benchmark-compare measures nothing beside {option}; leave it out"]
    )


def test_a_configuration_that_only_collects_is_refused_and_who_types_it_is_not(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    typed = gated(pytester, options=("--collect-only",))
    pytester.makeini("[pytest]\naddopts = --co\n")

    configured = gated(pytester)

    assert typed.ret == 0
    assert configured.ret == 4
    text = "measures nothing beside --collect-only, which is not typed; leave it out"
    configured.stderr.fnmatch_lines([f"ERROR: --benchmark-compare {text}"])


def test_a_base_on_the_command_line_goes_before_a_folder_in_the_ini_file(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    pytester.makeini("[pytest]\nperf_base_dir = nowhere\n")
    words[OTHER] = "PASS"

    assert gated(pytester, options=("--perf-base=HEAD~1",)).ret == 0


def leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stored runs say too little of every cell, once it was measured."""
    monkeypatch.setattr(History, "can_screen", lambda self, name: True)
    monkeypatch.setattr(History, "screen", lambda *_: None)
    monkeypatch.setattr(History, "find_increases", lambda *_: None)


def test_what_stored_runs_leave_open_is_judged_in_one_batch_and_reported_by_its_test(
    pytester: pytest.Pytester, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(monkeypatch)
    words[OTHER] = "FAIL"
    asked: list[GateRequest] = []
    judge = gate.run_gate

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        asked.append(request)
        judgement = Judgement(trials=(), num_pairs=1, wall_s=60.0)
        return dataclasses.replace(judge(request, say=say), judgement=judgement)

    monkeypatch.setattr(gate, "run_gate", run_gate)

    result = gated(pytester)

    assert result.ret == 10
    assert table(result) == {FINE: "PASS", OTHER: "FAIL"}
    assert [request.cells for request in asked] == [frozenset(), {FINE, OTHER}]
    assert [request.budget.max_s for request in asked] == [1800.0, 1740.0]
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([f"FAILED {OTHER} - *the pairs say FAIL*"])
    stored = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert {one["extra_info"]["perfsuite"]["verdict"]["word"] for one in stored} == {"PASS", "FAIL"}


def test_pairs_that_cannot_be_run_at_the_end_leave_no_cell_without_a_word(
    pytester: pytest.Pytester, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(monkeypatch)
    judge = gate.run_gate

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        if request.cells:
            raise WriteError("the disk is full")
        return judge(request, say=say)

    monkeypatch.setattr(gate, "run_gate", run_gate)

    result = gated(pytester)

    assert result.ret == 12
    assert table(result) == {FINE: "NO-BASELINE", OTHER: "NO-BASELINE"}
    assert f"{FINE}, {OTHER}: the pairs could not be run: the disk is full" in result.outlines


def test_pairs_that_are_refused_at_the_end_say_why_no_cell_was_compared(
    pytester: pytest.Pytester, words: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(monkeypatch)
    judge = gate.run_gate

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        result = judge(request, say=say)
        refusal = "head's tests cannot be collected" if request.cells else None
        return dataclasses.replace(result, cells=() if refusal else result.cells, refusal=refusal)

    monkeypatch.setattr(gate, "run_gate", run_gate)

    result = gated(pytester)

    assert result.ret == 12
    assert table(result) == {FINE: "NO-BASELINE", OTHER: "NO-BASELINE"}
    assert f"{FINE}, {OTHER}: head's tests cannot be collected" in result.outlines


def test_a_test_that_is_no_cell_keeps_its_failure_to_itself(
    pytester: pytest.Pytester, words: dict[str, str]
) -> None:
    words[OTHER] = "PASS"
    pytester.makepyfile(test_plain="def test_plain():\n    assert False\n")

    result = gated(pytester)

    assert result.ret == 1
    assert table(result) == {FINE: "PASS", OTHER: "PASS"}
    assert said(pytester.path) == ("ERROR", "2 cells: 2 PASS; 1 of its tests failed")


@pytest.mark.parametrize(("word", "code"), [("PASS", 0), ("FAIL", 10)])
def test_a_count_above_the_newest_stored_run_is_for_the_pairs_to_confirm(
    pytester: pytest.Pytester,
    words: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    code: int,
) -> None:
    words[OTHER] = word
    monkeypatch.setattr(History, "can_screen", lambda self, name: name == OTHER)
    monkeypatch.setattr(History, "find_increases", lambda *arguments: "flops 100 -> 120")
    pytester.makepyfile(
        test_inner="""
        from perfsuite import Recipe

        def test_other(train_benchmark):
            train_benchmark("toy-mlp", Recipe(), rounds=2, iterations=1)
        """
    )

    result = pytester.runpytest_inprocess(
        ".", "--benchmark-compare", "--perf-numerics=off", "-p", "no:cacheprovider"
    )

    assert result.ret == code
    assert table(result) == {OTHER: word}
    result.stdout.fnmatch_lines(
        [f"*{OTHER} goes to the judge: flops 100 -> 120 since the base's stored run"]
    )
