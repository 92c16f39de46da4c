"""`--perf-shard=I/N`: each cell on one runner, each runner's verdicts its own. Inner sessions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from gated_repository import SLOW_SHOP, TWO_CELLS, make_shop

from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import GateResult
from perfsuite.plugin.session import gate, saving
from perfsuite.records.verdict import CellVerdict
from perfsuite.report.runs import read_runs
from perfsuite.report.shards import merge_shards

SUITE = """
    import pytest

    @pytest.mark.parametrize("cell", "abcde")
    def test_cell(benchmark, cell):
        benchmark.pedantic(sum, args=([1, 2],), rounds=3)

    def test_other():
        pass
"""
CELLS = [f"test_inner.py::test_cell[{letter}]" for letter in "abcde"]
OTHER = "test_inner.py::test_other"
# One of our settings, which makes the session of a plain suite ours.
OURS = ("--perf-seed=0",)
ALLOWED = "use I/N for the I-th of N shards, such as 2/4; N may be 99999 at most"


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "probe_host", lambda: {"memory": 0.04})


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_inner=SUITE)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", *OURS, *arguments)


def collected(project: pytest.Pytester, *arguments: str) -> list[str]:
    """The tests that a session would run."""
    lines = run(project, "--collect-only", "-q", *arguments).outlines
    return [line for line in lines if line.startswith("test_inner.py::")]


def store_durations(project: pytest.Pytester, seconds: Sequence[float]) -> None:
    """Save a run, and let its cells have taken as long as that."""
    assert run(project, "--benchmark-save=base").ret == 0
    (path,) = (project.path / "baselines").glob("*/0001_base.json")
    content = json.loads(path.read_text())
    assert list(content["perfsuite"]["durations_s"]) == CELLS
    content["perfsuite"]["durations_s"] = dict(zip(CELLS, seconds, strict=False))
    path.write_text(json.dumps(content))


def test_each_cell_is_in_one_shard_and_the_other_tests_are_in_the_first(
    project: pytest.Pytester,
) -> None:
    shards = [collected(project, f"--perf-shard={number}/3") for number in (1, 2, 3)]

    assert shards == [[CELLS[0], CELLS[3], OTHER], [CELLS[1], CELLS[4]], [CELLS[2]]]


def test_cells_of_other_shards_are_deselected_and_the_cut_is_told(
    project: pytest.Pytester,
) -> None:
    result = run(project, "--perf-shard=2/3")

    result.assert_outcomes(passed=2, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "perfsuite: shard 2/3: 2 of 5 cells, partition ????????????, * of * by 0 known "
            "durations from baselines"
        ]
    )


def test_shards_are_balanced_by_the_durations_of_stored_runs(project: pytest.Pytester) -> None:
    store_durations(project, [1.0, 1.0, 4.0, 1.0])

    result = run(project, "--perf-shard=1/2", "--collect-only", "-q")

    assert [line for line in result.outlines if line in CELLS] == [CELLS[2]]
    assert collected(project, "--perf-shard=2/2") == [CELLS[0], CELLS[1], CELLS[3], CELLS[4]]
    run(project, "--perf-shard=2/2").stdout.fnmatch_lines(
        [
            "perfsuite: shard 2/2: 4 of 5 cells, partition ????????????, 3.00 s of 7.00 s by 4 "
            "known durations from baselines"
        ]
    )


def test_shards_of_one_commit_are_not_cut_by_what_the_first_of_them_stored(
    project: pytest.Pytester,
) -> None:
    for arguments in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "-m", "one"]):
        identity = ["-c", "user.name=author", "-c", "user.email=author@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=project.path, check=True)
    store_durations(project, [1.0, 1.0, 4.0, 1.0, 1.0])

    run(project, "--perf-shard=1/2").stdout.fnmatch_lines(
        ["perfsuite: shard 1/2: 3 of 5 cells, *, * of * by 0 known durations from baselines"]
    )


def test_a_run_that_is_named_tells_the_durations(project: pytest.Pytester) -> None:
    store_durations(project, [1.0, 1.0, 4.0, 1.0, 1.0])
    (path,) = (project.path / "baselines").rglob("*.json")
    path.rename(project.path / "before.json")

    tests = collected(project, "--perf-shard=1/2", "--perf-durations=before.json")

    assert tests == [CELLS[2], OTHER]


def test_what_was_selected_otherwise_is_cut(project: pytest.Pytester) -> None:
    shards = [
        collected(project, f"--perf-shard={number}/2", "-k", "[d] or [e]") for number in (1, 2)
    ]

    assert shards == [[CELLS[3]], [CELLS[4]]]


def test_the_files_of_all_shards_are_one_session_again(project: pytest.Pytester) -> None:
    paths = [project.path / f"{number}.json" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        run(project, f"--perf-shard={number}/2", f"--benchmark-json={path}")

    (merged,) = merge_shards(read_runs(paths))
    assert sorted(row.name for row in merged.rows) == CELLS
    assert merged.gaps == ()
    assert merged.remarks == (
        "verdicts are corrected over the 5 cells under test in all 2 shards",
        "no shard names its commit, so they may be of different code",  # the project has no git
    )


def test_the_file_of_a_whole_session_names_no_shard(project: pytest.Pytester) -> None:
    run(project, "--benchmark-json=own.json")

    (whole,) = read_runs([project.path / "own.json"])
    assert whole.shard is None


@pytest.mark.parametrize("value", ["0/4", "5/4", "a/b", "2", ""])
def test_what_is_no_shard_is_a_usage_error(project: pytest.Pytester, value: str) -> None:
    result = run(project, f"--perf-shard={value}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines[0] == f"ERROR: --perf-shard is {value!r} (command line); {ALLOWED}"


def test_the_shard_may_be_an_ini_value(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nperf_shard = 3/3\n")
    assert collected(project) == [CELLS[2]]
    assert collected(project, "--perf-shard=1/1") == [*CELLS, OTHER]

    project.makeini("[pytest]\nperf_shard = 3/2\n")
    result = run(project)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    ini = project.path / "tox.ini"
    assert result.errlines[0] == f"ERROR: perf_shard is '3/2' (ini file {ini}); {ALLOWED}"


@pytest.mark.parametrize(
    ("name", "reason"), [("none.json", " (No such file or directory)"), ("empty", "")]
)
def test_durations_that_are_none_are_a_usage_error(
    project: pytest.Pytester, name: str, reason: str
) -> None:
    (project.path / "empty").mkdir()

    result = run(project, "--perf-shard=1/2", f"--perf-durations={name}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines[0] == (
        f"ERROR: --perf-durations is '{name}', which has no duration of any of the 5 cells"
        f"{reason}; name a run that perfsuite wrote, such as results/run.json, or a folder of them"
    )


@pytest.mark.parametrize("flag", ["--last-failed", "--stepwise"])
def test_what_each_runner_chooses_for_itself_is_not_cut(
    project: pytest.Pytester, flag: str
) -> None:
    result = project.runpytest_inprocess("--perf-shard=2/4", flag)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines[0] == (
        f"ERROR: {flag} chooses by what failed on this runner, and shard 2/4 is cut from the cells "
        "that all runners choose; leave out one of the two"
    )
    assert project.runpytest_inprocess(flag).ret == 0


def test_an_empty_shard_ends_as_a_session_without_tests_and_says_why(
    project: pytest.Pytester,
) -> None:
    result = run(project, "--perf-shard=7/9")

    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        ["perfsuite: shard 7/9 is empty: 5 cells in 9 shards; use 5 shards or fewer"]
    )


def test_a_suite_without_cells_is_said_to_have_none(project: pytest.Pytester) -> None:
    result = run(project, "--perf-shard=2/2", "-k", "other")

    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["perfsuite: shard 2/2 is empty: no cell was collected"])


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[GateRequest]:
    """What the gate is asked, which finds one cell slower, one new and one gone."""
    words = {
        CELLS[0]: "PASS",
        CELLS[1]: "FAIL",
        CELLS[2]: "PASS",
        CELLS[3]: "NEW",
        CELLS[4]: "PASS",
        "test_inner.py::test_gone": "VANISHED",
    }
    asked: list[GateRequest] = []

    def run_gate(request: GateRequest, *, say: Callable[[str], None]) -> GateResult:
        asked.append(request)
        cells = [
            CellVerdict(name=name, word=word, by="pairs")
            for name, word in words.items()
            if word in ("NEW", "VANISHED") or request.cells is None or name in request.cells
        ]
        return GateResult(
            cells=tuple(cells), refusal=None, differs={}, judgement=None, seed=request.seed
        )

    monkeypatch.setattr(gate, "run_gate", run_gate)
    return asked


def table(result: pytest.RunResult) -> dict[str, str]:
    """The word of each cell in the gate's table."""
    rows = [line.split() for line in result.outlines if line.startswith(" test_inner.py::")]
    return {row[0]: row[1] for row in rows}


# Shard 1 has a and d, shard 2 has b and e, shard 3 has c.
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (1, 12, {CELLS[0]: "PASS", CELLS[3]: "NEW", "test_inner.py::test_gone": "VANISHED"}),
        (2, 10, {CELLS[1]: "FAIL", CELLS[4]: "PASS"}),
        (3, 0, {CELLS[2]: "PASS"}),
    ],
)
def test_a_shard_judges_its_own_cells_and_the_first_tells_what_vanished(
    project: pytest.Pytester,
    requests: list[GateRequest],
    number: int,
    code: int,
    words: dict[str, str],
) -> None:
    result = run(project, f"--perf-shard={number}/3", ".", "--benchmark-compare")

    assert result.ret == code
    assert table(result) == words
    (request,) = requests
    assert request.cells == words.keys() & set(CELLS)


def test_each_shard_is_corrected_over_the_cells_of_all(
    project: pytest.Pytester, requests: list[GateRequest]
) -> None:
    for number in (1, 2, 3):
        run(project, f"--perf-shard={number}/3", ".", "--benchmark-compare")

    assert [request.num_cells for request in requests] == [5, 5, 5]


def test_an_empty_shard_compares_nothing(
    project: pytest.Pytester, requests: list[GateRequest]
) -> None:
    result = run(project, "--perf-shard=9/9", ".", "--benchmark-compare")

    assert result.ret == 13
    result.stdout.fnmatch_lines(
        ["perfsuite: shard 9/9 is empty: 5 cells in 9 shards; use 5 shards or fewer"]
    )
    assert requests == []


@pytest.mark.slow
def test_two_runners_gate_a_change_of_which_one_cell_is_slower(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop")
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()
    shop.write(shop=SLOW_SHOP)
    price, stock = (f"benchmarks/test_steps.py::test_{name}" for name in ("price", "stock"))

    slow = shop.gate("--perf-shard=1/2")
    # The launches of the gate are given it, too, and have to have every cell all the same.
    fine = shop.gate("-o", "perf_shard=2/2")

    slow.expect(10, f"{price} FAIL +200.0 % *")
    fine.expect(0, f"{stock} PASS *")
    assert stock not in slow.output
    assert price not in fine.output


@pytest.mark.parametrize(
    ("path", "shown"),
    [("results/run.json", "results/run.json"), ("s3://a:b/c@d/x", "s3://***@d/x")],
)
def test_durations_that_nothing_looks_at_are_a_usage_error(
    project: pytest.Pytester, path: str, shown: str
) -> None:
    result = run(project, f"--perf-durations={path}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines[-2] == (
        f"ERROR: --perf-durations is '{shown}', and only --perf-shard=I/N looks at it; add "
        "--perf-shard, or leave it out"
    )


def test_durations_of_an_ini_file_wait_for_a_session_that_is_cut(
    project: pytest.Pytester,
) -> None:
    project.makeini("[pytest]\nperf_durations = results/run.json\n")

    assert collected(project) == [*CELLS, OTHER]


def test_a_durations_url_with_credentials_is_refused_without_them(
    project: pytest.Pytester,
) -> None:
    result = run(project, "--perf-shard=1/2", "--perf-durations=s3://a:b/c@d/x")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines[-2] == (
        "ERROR: --perf-durations is 's3://***@d/x', which holds credentials or a port before its "
        "first '/'; leave them out: the client takes them from its environment variables or its "
        "own files"
    )
