"""What pytest-benchmark saves: stamped, whole, under numbers of its own. Through inner sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest import timing
from command_line import call_verb
from git_checkouts import commit, git

from perfsuite.errors import DeviceError
from perfsuite.experiments.rank_session import Session
from perfsuite.gate.baselines.select import choose_runs
from perfsuite.gate.run_gate import GateResult
from perfsuite.plugin.session import gate, saving
from perfsuite.plugin.session.saving import RunSaver
from perfsuite.records.verdict import CellVerdict
from perfsuite.system import environment
from perfsuite.system.gpus import GpuFacts
from perfsuite.system.timing_lock import TimingLock

# A plain suite is perfsuite's to stamp and to store where one of its settings is given.
OURS = ("--perf-gate=on",)
PROBE_S = {"interpreter": 0.03, "memory": 0.04}
# A suite of somebody else: no fixture of ours, no torch.
PLAIN = """
    def test_sum(benchmark):
        assert benchmark.pedantic(sum, args=([1, 2],), rounds=3) == 3
"""
FAILING = """
    def test_other():
        raise AssertionError
"""


@pytest.fixture(autouse=True)
def _on_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pull request, whoever runs these tests, and no half a second for each inner session."""
    for name in (*environment._PULL_REQUEST_EVENTS, *environment._PULL_REQUEST_NUMBERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(saving, "probe_host", lambda: PROBE_S)


def run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_inner=test)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *OURS, *arguments)


def saved(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*/0001_*.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def refusals(folder: Path, fingerprint: str) -> list[str]:
    return [run.reason for run in choose_runs(folder, True, fingerprint).refused]


def test_a_run_is_saved_with_its_stamp_and_is_a_baseline(pytester: pytest.Pytester) -> None:
    result = run(pytester, PLAIN, "--benchmark-save=base", "-W", "error")

    assert result.ret == 0
    run_stamp = saved(pytester.path / "baselines")["perfsuite"]
    fingerprint = run_stamp.pop("fingerprint")
    here = environment.describe_host(os.environ, len(os.sched_getaffinity(0)))
    assert here.fingerprint == fingerprint
    ((name, seconds),) = run_stamp.pop("durations_s").items()
    assert name == "test_inner.py::test_sum"
    assert seconds >= 0
    assert list(run_stamp.pop("digests")) == [name]
    assert run_stamp == {
        "schema": 1,
        "probe_s": PROBE_S,
        "num_failed": 0,
        "is_pull_request": False,
        "verdicts": {},
        "accepted": [],
        "exceptions": {},
        "shard": None,
        "environments": {fingerprint: json.loads(msgspec.json.encode(here))},
    }
    choice = choose_runs(pytester.path / "baselines", True, fingerprint)
    assert [list(run.cells) for run in choice.usable] == [["test_inner.py::test_sum"]]
    assert choice.refused == ()


H100 = GpuFacts(
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-1",
    memory_bytes=80 * 2**30,
    compute_capability=(9, 0),
    power_limit_w=700.0,
    is_mig=False,
)


def test_a_run_on_gpus_is_reported_with_them_and_refused_under_another_driver(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "visible_gpus", lambda environ: [H100, H100])
    monkeypatch.setattr(environment, "driver_version", lambda: "570.86")
    refused = GateResult(refusal="no pairs are run here", differs={}, seed=0)
    monkeypatch.setattr(gate, "run_gate", lambda *_, **__: refused)
    run(pytester, PLAIN, "--benchmark-save=base")
    git(pytester.path, "init", "--quiet", "--initial-branch=main")
    commit(pytester.path, "test_inner.py", (pytester.path / "test_inner.py").read_text())
    (stored,) = pytester.path.glob("baselines/*/0001_base.json")

    assert call_verb("report", str(stored), "--markdown", "report.md") == 0
    monkeypatch.setattr(environment, "driver_version", lambda: "580.65")
    result = run(pytester, PLAIN, ".", "--benchmark-compare", "--perf-base=HEAD")

    report = (pytester.path / "report.md").read_text()
    assert "2 x NVIDIA H100 80GB HBM3, driver 570.86, Linux" in report
    assert (
        result.outlines.count(
            f"not compared with {stored}: was made in another environment: driver 570.86 -> 580.65"
        )
        == 1
    )


@pytest.mark.slow
def test_a_run_says_what_the_fingerprints_of_its_cells_stand_for(
    pytester: pytest.Pytester,
) -> None:
    cell = """
        def test_sum(all_reduce_benchmark):
            all_reduce_benchmark("ddp:2", 8)
    """

    result = run(pytester, cell, "--benchmark-save=base", "--perf-device=cpu", "--perf-rounds=1")

    assert result.ret == 0
    document = saved(pytester.path / "baselines")
    (benchmark,) = document["benchmarks"]
    own, of_ranks = (
        one["fingerprint"] for one in (document["perfsuite"], benchmark["extra_info"]["perfsuite"])
    )
    known = document["perfsuite"]["environments"]
    assert set(known) == {own, of_ranks}
    assert "num_threads" in known[of_ranks]["knobs"]
    choice = choose_runs(pytester.path / "baselines", True, own)
    (stored,) = choice.usable[0].cells.values()
    assert isinstance(stored.environment, environment.Environment)
    assert stored.environment.fingerprint == of_ranks


@pytest.mark.slow
def test_the_duration_of_a_test_leaves_out_the_wait_for_the_machine(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s = [0.0]
    for module, name in ((time, "monotonic"), (timing, "perf_counter")):
        clock = getattr(module, name)
        monkeypatch.setattr(module, name, lambda clock=clock: clock() + sum(waited_s))
    monkeypatch.setattr(TimingLock, "acquire", lambda lock: waited_s.__setitem__(0, 3600.0))
    cell = """
        def test_sum(all_reduce_benchmark):
            all_reduce_benchmark("ddp:2", 8)
    """

    result = run(pytester, cell, "--benchmark-save=base", "--perf-device=cpu", "--perf-rounds=1")

    assert (result.ret, waited_s) == (0, [3600.0])
    (seconds,) = saved(pytester.path / "baselines")["perfsuite"]["durations_s"].values()
    assert 0 <= seconds < 1800


@pytest.mark.parametrize("option", ["--benchmark-autosave", "--benchmark-save=base"])
def test_every_file_of_a_run_has_the_same_stamp(pytester: pytest.Pytester, option: str) -> None:
    run(pytester, PLAIN, option, "--benchmark-json=own.json")

    own = json.loads((pytester.path / "own.json").read_text())
    assert own["perfsuite"] == saved(pytester.path / "baselines")["perfsuite"]
    assert own["perfsuite"]["probe_s"] == PROBE_S


ERROR_IN_SETUP = """
    import pytest

    @pytest.fixture
    def broken():
        raise OSError

    def test_a(broken):
        pass
"""
FAILURE_AND_ERROR_IN_TEARDOWN = """
    import pytest

    @pytest.fixture
    def broken():
        yield
        raise OSError

    def test_a(broken):
        raise AssertionError
"""
EXPECTED_FAILURE = """
    import pytest

    @pytest.mark.xfail
    def test_a():
        raise AssertionError
"""
UNEXPECTED_PASS = """
    import pytest

    @pytest.mark.xfail(strict=True)
    def test_a():
        pass
"""
SKIPPED = """
    import pytest

    def test_a():
        pytest.skip("not here")
"""
CUT_OFF = """
    import pytest

    def test_a():
        pytest.exit("enough")
"""


@pytest.mark.parametrize(
    ("test", "num_failed"),
    [
        (FAILING, 1),
        (ERROR_IN_SETUP, 1),
        (FAILURE_AND_ERROR_IN_TEARDOWN, 1),
        (EXPECTED_FAILURE, 0),
        (UNEXPECTED_PASS, 1),
        (SKIPPED, 0),
        (CUT_OFF, 1),
    ],
    ids=["failure", "setup", "teardown", "expected", "unexpected", "skipped", "cut off"],
)
def test_each_test_that_failed_is_counted_once(
    pytester: pytest.Pytester, test: str, num_failed: int
) -> None:
    pytester.makepyfile(test_later=test)

    run(pytester, PLAIN, "--benchmark-save=base")

    storage = pytester.path / "baselines"
    run_stamp = saved(storage)["perfsuite"]
    assert run_stamp["num_failed"] == num_failed
    reasons = [f"{num_failed} of its tests failed"] if num_failed else []
    assert refusals(storage, run_stamp["fingerprint"]) == reasons


def test_a_file_that_cannot_be_collected_is_a_failure(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_broken="import nowhere")

    run(pytester, PLAIN, "--benchmark-save=base", "--continue-on-collection-errors")

    assert saved(pytester.path / "baselines")["perfsuite"]["num_failed"] == 1


def test_a_run_of_a_pull_request_is_never_a_baseline(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_EVENT_NAME", "pull_request")

    run(pytester, PLAIN, "--benchmark-save=base")

    storage = pytester.path / "baselines"
    fingerprint = saved(storage)["perfsuite"]["fingerprint"]
    assert refusals(storage, fingerprint) == ["was saved from a pull request"]


def fingerprint_of(path: Path) -> str:
    fingerprint: str = json.loads(path.read_text())["perfsuite"]["fingerprint"]
    return fingerprint


def test_the_fingerprint_is_that_of_the_session_whatever_it_measures(
    pytester: pytest.Pytester,
) -> None:
    run(pytester, PLAIN, "--benchmark-json=one.json")
    run(pytester, PLAIN + PLAIN.replace("sum", "max"), "--benchmark-json=two.json")

    assert fingerprint_of(pytester.path / "one.json") == fingerprint_of(pytester.path / "two.json")


def test_what_a_test_leaves_behind_does_not_make_another_environment(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run(pytester, PLAIN, "--benchmark-json=before.json")
    pytester.makepyfile(
        test_leaving="""
        import os

        def test_leaving():
            os.environ["OMP_NUM_THREADS"] = "61"
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    """
    )
    cores = os.sched_getaffinity(0)
    try:
        run(pytester, PLAIN, "--benchmark-json=after.json")
    finally:
        os.sched_setaffinity(0, cores)
        os.environ.pop("OMP_NUM_THREADS", None)

    before, after = pytester.path / "before.json", pytester.path / "after.json"
    assert fingerprint_of(before) == fingerprint_of(after)


def test_another_number_of_threads_is_another_environment(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pytester, PLAIN, "--benchmark-json=before.json")
    monkeypatch.setenv("OMP_NUM_THREADS", "61")
    run(pytester, PLAIN, "--benchmark-json=after.json")

    before, after = pytester.path / "before.json", pytester.path / "after.json"
    assert fingerprint_of(before) != fingerprint_of(after)


def test_a_verdict_is_in_the_stamp_and_its_failure_is_not_counted_as_the_tests(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("""
        import pytest
        from perfsuite.records.verdict import CellVerdict

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            saver = item.config.pluginmanager.get_plugin("perfsuite-saver")
            if report.when == "call" and "slow" in item.name:
                verdict = CellVerdict(name=item.nodeid, word="FAIL", by="pairs")
                saver.verdicts[item.nodeid] = verdict
                report.outcome, report.longrepr = "failed", "FAIL"
            elif report.when == "call":
                rule = {"tolerance": 0.02, "accepted_slowdown": 1.3}
                verdict = CellVerdict(
                    name=item.nodeid, word="PASS", by="pairs", ratio=1.2, rule=rule
                )
                saver.verdicts[item.nodeid] = verdict
            return report
    """)
    test = PLAIN + "    def test_slow(benchmark):\n        benchmark.pedantic(sum, args=([1],))\n"

    result = run(pytester, test, "--benchmark-save=base")

    assert result.ret == 1
    storage = pytester.path / "baselines"
    run_stamp = saved(storage)["perfsuite"]
    assert run_stamp["num_failed"] == 0
    assert run_stamp["verdicts"] == {
        "test_inner.py::test_sum": "PASS",
        "test_inner.py::test_slow": "FAIL",
    }
    assert run_stamp["accepted"] == ["test_inner.py::test_sum"]
    assert refusals(storage, run_stamp["fingerprint"]) == [
        "the verdict of its cell test_inner.py::test_slow is FAIL"
    ]


def test_a_verdict_does_not_hide_that_the_test_itself_failed(
    pytester: pytest.Pytester, request: pytest.FixtureRequest
) -> None:
    saver = RunSaver(request.config, {}, num_cores=1, probe_device=dict)
    report = pytest.TestReport(
        nodeid="a", location=("a", 0, "a"), keywords={}, outcome="failed", longrepr="", when="call"
    )
    output: dict[str, Any] = {"benchmarks": []}

    saver.verdicts["a"] = CellVerdict(name="a", word="PASS", by="pairs")
    saver.pytest_runtest_logreport(report)
    saver.pytest_benchmark_update_json(output)

    assert output["perfsuite"]["num_failed"] == 1


def test_a_machine_is_probed_once_and_only_for_a_run_that_is_kept(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(saving, "probe_host", lambda: calls.append(None) or PROBE_S)

    run(pytester, PLAIN)
    assert calls == []

    run(pytester, PLAIN, "--benchmark-save=base", "--benchmark-json=own.json")
    assert calls == [None]


ON_A_RANK = """
    def test_sum(benchmark, rank_group):
        assert rank_group(1, sum, [1, 2]) == [3]
        benchmark.pedantic(sum, args=([1, 2],), rounds=3)
"""


@pytest.mark.parametrize(("test", "is_probed"), [(ON_A_RANK, True), (PLAIN, False)])
def test_the_gpu_of_a_session_with_ranks_is_probed_beside_the_host(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, test: str, is_probed: bool
) -> None:
    monkeypatch.setattr(Session, "probe_device", lambda self: {"GPU matmul": 0.2})

    run(pytester, test, "--benchmark-save=base")

    expected = PROBE_S | ({"GPU matmul": 0.2} if is_probed else {})
    assert saved(pytester.path / "baselines")["perfsuite"]["probe_s"] == expected


def test_a_run_is_kept_whose_gpu_is_lost_before_it_was_probed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(session: Session) -> dict[str, float]:
        raise DeviceError("the GPU is lost")

    monkeypatch.setattr(Session, "probe_device", lose)

    result = run(pytester, ON_A_RANK, "--benchmark-save=base")

    result.stdout.fnmatch_lines(["*the GPU was not probed: the GPU is lost"])
    assert saved(pytester.path / "baselines")["perfsuite"]["probe_s"] == PROBE_S


def test_sessions_that_save_at_the_same_time_are_all_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_inner=PLAIN)
    command = [sys.executable, "-m", "pytest", *OURS, "-p", "no:cacheprovider"]
    command.append("--benchmark-save=run")

    sessions = [
        subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [session.communicate()[0] for session in sessions]

    assert [session.returncode for session in sessions] == [0, 0, 0], outputs
    files = sorted(pytester.path.glob("baselines/*/*"))
    assert [file.name for file in files] == [f"000{number}_run.json" for number in (1, 2, 3)]
    assert len({json.loads(file.read_text())["datetime"] for file in files}) == 3


def test_a_number_that_another_session_takes_meanwhile_is_not_overwritten(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("""
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_benchmark_update_json(config):
            folder = config.rootpath / "baselines" / config._benchmarksession.machine_id
            folder.mkdir(parents=True)
            (folder / "0001_theirs.json").write_text("theirs")
            (folder / "0002_ours.json").write_text("theirs too")
    """)

    run(pytester, PLAIN, "--benchmark-save=ours")

    (folder,) = (pytester.path / "baselines").iterdir()
    assert (folder / "0001_theirs.json").read_text() == "theirs"
    assert (folder / "0002_ours.json").read_text() == "theirs too"
    assert "perfsuite" in json.loads((folder / "0003_ours.json").read_text())


def test_saving_says_where_as_pytest_benchmark_does(
    pytester: pytest.Pytester, capfd: pytest.CaptureFixture[str]
) -> None:
    run(pytester, PLAIN, "--benchmark-save=base", "--benchmark-json=own.json")

    (path,) = pytester.path.glob("baselines/*/0001_base.json")
    lines = capfd.readouterr().err.splitlines()
    assert f"Saved benchmark data in: {path}" in lines
    assert any(line.startswith("Wrote benchmark data in: ") for line in lines)


def test_a_storage_outside_of_the_working_directory_is_used(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = tmp_path_factory.mktemp("storage")

    result = run(pytester, PLAIN, "--benchmark-save=base", f"--benchmark-storage=file://{storage}")

    assert result.ret == 0
    fingerprint = saved(storage)["perfsuite"]["fingerprint"]
    assert len(choose_runs(storage, True, fingerprint).usable) == 1
    assert not (pytester.path / "baselines").exists()


def test_a_run_that_cannot_be_written_ends_in_12_with_one_line(pytester: pytest.Pytester) -> None:
    taken = pytester.path / "taken"
    taken.write_text("a file")

    result = run(pytester, PLAIN, f"--benchmark-json={taken}/own.json")

    assert result.ret == 12
    said = [line for line in result.outlines if line.startswith("perfsuite: cannot")]
    assert len(said) == 1
    assert said[0].startswith(f"perfsuite: cannot write {taken}/own.json: ")
    assert taken.read_text() == "a file"


def test_a_storage_that_is_a_file_is_refused_before_anything_is_measured(
    pytester: pytest.Pytester,
) -> None:
    pytester.path.joinpath("taken").write_text("a file")

    result = run(pytester, PLAIN, "--benchmark-save=base", "--benchmark-storage=file://taken")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = "--benchmark-storage is 'file://taken', which is no folder; name the folder of the runs"
    result.stderr.fnmatch_lines([f"*{said}*"])
    assert "passed" not in result.stdout.str()


def test_a_test_that_failed_is_graver_than_a_file_that_cannot_be_written(
    pytester: pytest.Pytester,
) -> None:
    pytester.path.joinpath("taken").write_text("a file")

    result = run(pytester, PLAIN + FAILING, "--benchmark-json=taken/own.json")

    assert result.ret == 1
    result.stdout.fnmatch_lines(["perfsuite: cannot write taken/own.json: *"])


def test_a_session_without_pytest_benchmark_saves_nothing_and_passes(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, "def test_a(): pass", "-p", "no:benchmark")

    assert result.ret == 0


def test_saving_a_plain_suite_imports_no_torch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_inner=PLAIN)
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure():
            assert not {"torch", "numpy"} & set(sys.modules)
    """)

    result = pytester.runpytest_subprocess(*OURS, "-p", "no:cacheprovider", "--benchmark-save=base")

    assert result.ret == 0


def test_the_clock_rate_of_the_moment_is_not_part_of_the_machine(
    request: pytest.FixtureRequest,
) -> None:
    saver = RunSaver(request.config, {}, num_cores=1, probe_device=dict)
    machine_info = {"node": "n", "cpu": {"brand_raw": "X", "hz_actual": [1, 0], "count": 2}}

    saver.pytest_benchmark_update_machine_info(machine_info)

    assert machine_info == {"node": "n", "cpu": {"brand_raw": "X", "count": 2}}
