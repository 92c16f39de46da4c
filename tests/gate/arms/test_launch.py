"""Real pairs of launches of tiny suites: what comes back, who runs when, and what stays."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_suites import has_ended, make_arms, outcomes, pair

from perfsuite.errors import WriteError
from perfsuite.gate.arms import launch as launch_module
from perfsuite.gate.arms.arm import Launch, PairPlan
from perfsuite.gate.arms.launched.arm_plugin import _reason

pytestmark = pytest.mark.slow

# What would keep an arm from measuring, or leave files.
WORKERS = "-n2" if find_spec("xdist") else ""
INI = f"""
[pytest]
addopts = {WORKERS} -x --benchmark-disable --junitxml=junit.xml --benchmark-json=run.json
    --ff --strict-config --benchmark-autosave
    --benchmark-storage=file://./stored --benchmark-histogram=histogram
cache_dir = cache
"""
# Version 5.2 makes the file while it reads its options, before any plugin is asked.
OPENED_BY_PYTEST_BENCHMARK = (
    {"run.json"} if version("pytest-benchmark").startswith("5.2.") else set[str]()
)

# One suite for all that a launch survives; the order in the file is not the order of the runs.
SUITE = """
import json, os, subprocess, sys, time
from pathlib import Path
import pytest

ARM = os.environ["PERFSUITE_ARM_NAME"]
HERE = Path(__file__).parent

def work():
    return sum(range(500))

def fail_in_head():
    assert ARM == "base", "only in head"

def test_plain():
    assert False, "no cell"

def test_quick(benchmark):
    assert benchmark(work) == 124750

def test_turns(benchmark):
    intervals = []
    def timed():
        began = time.monotonic()
        time.sleep(0.002)
        intervals.append((began, time.monotonic()))
    benchmark.pedantic(timed, rounds=4)
    (HERE / "intervals.json").write_text(json.dumps(intervals))

@pytest.mark.parametrize("n", [1, 2], ids=["a::b", "c/d"])
def test_parametrized(benchmark, n):
    benchmark.pedantic(work, rounds=n)

def test_fails(benchmark):
    benchmark(work)
    fail_in_head()

def test_raises_inside(benchmark):
    benchmark(fail_in_head)

@pytest.fixture
def broken(benchmark):
    benchmark(fail_in_head)

def test_broken_fixture(broken):
    pass

def test_swallows(benchmark):
    with pytest.raises(ZeroDivisionError):
        benchmark(lambda: 1 / 0)

def test_skipped(benchmark):
    pytest.skip("no GPU here")

def test_exits(benchmark):
    sys.exit(3)

def test_measures_nothing(benchmark):
    pass

def test_agrees(benchmark):
    benchmark(time.sleep, 0.00001 if ARM == "base" else 0.001)
    (HERE / "iterations").write_text(str(benchmark.stats.iterations))

@pytest.mark.benchmark(min_rounds=5, max_time=0.0001)
def test_own_rounds(benchmark):
    benchmark(time.sleep, 0.001)

def test_unused_by_choice(benchmark):
    (HERE / "ran").touch()

@pytest.mark.benchmark(timer=time.process_time)
def test_own_timer(benchmark):
    benchmark.pedantic(time.sleep, (0.05,), rounds=2)

def test_noise(benchmark, capfd):
    with capfd.disabled():
        os.write(1, b"noise \\xff without a line's end " * 10_000)
    benchmark(work)

def test_surroundings(benchmark):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (HERE / "surroundings.json").write_text(json.dumps({
        "hash": hash("perfsuite"), "path": sys.path, "child": child.pid, "cwd": os.getcwd(),
        "temporary": os.environ["TMPDIR"], "own": os.environ.get("OWN"), "group": os.getpgrp(),
    }))
    benchmark(work)
"""
CHOSEN = [
    *("test_turns", "test_exits", "test_fails", "test_raises_inside", "test_broken_fixture"),
    *("test_swallows", "test_skipped", "test_measures_nothing", "test_parametrized[c/d]"),
    *("test_own_timer", "test_noise", "test_surroundings", "test_parametrized[a::b]", "test_quick"),
    *("test_agrees", "test_own_rounds"),
]
RUNS = [f"test_cells.py::{name}" for name in CHOSEN]


def read(launch: Launch, name: str) -> Any:
    return json.loads((launch.arm.tree / name).read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole").resolve()


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Launch]:
    """A pair of launches of the suite."""
    return pair(make_arms(folder, SUITE, ini=INI), RUNS)


# --- what comes back ---


def test_both_arms_tell_what_they_collected(whole: dict[str, Launch], folder: Path) -> None:
    for name, launch in whole.items():
        suite = launch.suite
        assert suite is not None
        assert suite.root == folder / name
        assert suite.inifile == folder / name / "pytest.ini"
        assert suite.python_files == ("test_*.py", "*_test.py")
        assert suite.cells.keys() > set(RUNS)
        assert "test_cells.py::test_plain" not in suite.cells
        assert suite.cells["test_cells.py::test_quick"] == {"fixture": None}
        assert launch.takes_turns
        assert launch.failure is None


def test_both_arms_run_the_chosen_cells_alone_and_in_the_chosen_order(
    whole: dict[str, Launch], folder: Path
) -> None:
    for name, launch in whole.items():
        assert list(launch.cells) == RUNS
        assert not (folder / name / "ran").exists()


@pytest.mark.parametrize("first", ["base", "head"])
def test_the_arm_of_the_first_round_starts_first(
    whole: dict[str, Launch], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = launch_module._process
    monkeypatch.setattr(
        launch_module,
        "_process",
        lambda launch, *rest: started.append(launch.arm.name) or start(launch, *rest),
    )

    launches = pair([one.arm for one in whole.values()], [RUNS[0]], first=first)

    assert started == [first, *({"base", "head"} - {first})]
    assert [*launches] == ["base", "head"]


def test_rounds_come_back_from_every_way_of_timing(whole: dict[str, Launch]) -> None:
    for launch in whole.values():
        rounds = {name.partition("::")[2]: run.rounds_s for name, run in launch.cells.items()}
        assert len(rounds["test_quick"]) >= 3
        assert len(rounds["test_turns"]) == 4
        assert (len(rounds["test_parametrized[a::b]"]), len(rounds["test_parametrized[c/d]"])) == (
            1,
            2,
        )
        assert all(min(rounds[name]) > 0 for name in ("test_quick", "test_noise", "test_turns"))


def test_both_arms_time_a_cell_in_rounds_of_one_length(whole: dict[str, Launch]) -> None:
    base, head = (read(launch, "iterations") for launch in whole.values())
    assert base == head
    assert (
        len({len(launch.cells["test_cells.py::test_agrees"].rounds_s) for launch in whole.values()})
        == 1
    )


def test_the_gate_chooses_the_number_of_rounds_unless_the_test_does(
    whole: dict[str, Launch], folder: Path
) -> None:
    assert [
        len(launch.cells["test_cells.py::test_own_rounds"].rounds_s) for launch in whole.values()
    ] == [5, 5]

    arms = [dataclasses.replace(launch.arm) for launch in whole.values()]
    again = pair(arms, ["test_cells.py::test_quick"], num_rounds={"test_cells.py::test_quick": 37})

    for launch in again.values():
        run = launch.cells["test_cells.py::test_quick"]
        assert len(run.rounds_s) == 37
        assert run.alternated_s > 0


def test_the_suites_own_timer_is_the_one_that_is_read(whole: dict[str, Launch]) -> None:
    for launch in whole.values():
        slept_s = launch.cells["test_cells.py::test_own_timer"].rounds_s
        assert len(slept_s) == 2
        assert max(slept_s) < 0.05  # the processor does nothing in a sleep of 50 ms


def test_each_arm_reports_its_own_outcome_of_a_cell(whole: dict[str, Launch]) -> None:
    both = {
        **dict.fromkeys(CHOSEN, "passed"),
        "test_skipped": "skipped",
        "test_exits": "failed",
    }
    in_head_alone = ("test_fails", "test_raises_inside", "test_broken_fixture")

    assert outcomes(whole["base"]) == both
    assert outcomes(whole["head"]) == both | dict.fromkeys(in_head_alone, "failed")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_quick", None),
        ("test_skipped", "Skipped: no GPU here"),
        ("test_exits", "SystemExit: 3"),
        ("test_raises_inside", "AssertionError: only in head"),
    ],
)
def test_the_reason_is_what_pytest_says_of_it(
    whole: dict[str, Launch], name: str, reason: str | None
) -> None:
    assert whole["head"].cells[f"test_cells.py::{name}"].reason == reason


def test_the_reason_of_a_rank_that_failed_is_its_sentence_and_not_the_end_of_its_stack() -> None:
    told = "RankFailureError: rank 1 of 2 ended, in phase 'measure'\n  where it is:\n    File a.py"
    report = pytest.TestReport("a", ("a.py", 1, "a"), {}, "failed", told, "call")

    assert _reason(report) == "RankFailureError: rank 1 of 2 ended, in phase 'measure'"


@pytest.mark.parametrize("name", ["test_measures_nothing", "test_skipped", "test_exits"])
def test_a_cell_that_timed_nothing_has_no_rounds(whole: dict[str, Launch], name: str) -> None:
    assert [launch.cells[f"test_cells.py::{name}"].rounds_s for launch in whole.values()] == [
        (),
        (),
    ]


def test_a_suite_without_perfsuite_has_no_records_and_no_profile(whole: dict[str, Launch]) -> None:
    for launch in whole.values():
        for run in launch.cells.values():
            assert (run.record, run.profile) == (None, ())


# --- who runs when ---


def test_the_arms_never_run_at_once_and_take_turns_from_the_named_first(
    whole: dict[str, Launch],
) -> None:
    timed = sorted(
        (*interval, name)
        for name, launch in whole.items()
        for interval in read(launch, "intervals.json")
    )

    ends = [ended for _, ended, _ in timed]
    begins = [began for began, _, _ in timed]
    assert all(end < begin for end, begin in zip(ends, begins[1:], strict=False))
    assert [name for *_, name in timed] == [*("head", "base"), *("base", "head")] * 2


# --- what the arms live in ---


def test_both_arms_have_the_hash_seed_of_the_pair(whole: dict[str, Launch]) -> None:
    base, head = (read(launch, "surroundings.json")["hash"] for launch in whole.values())
    script = "print(hash('perfsuite'))"
    expected = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert base == head == int(expected.stdout)


def test_an_arm_runs_in_its_tree_with_its_roots_first_and_variables_of_its_own(
    whole: dict[str, Launch], folder: Path
) -> None:
    base, head = (read(launch, "surroundings.json") for launch in whole.values())

    for name, found in (("base", base), ("head", head)):
        tree = str(folder / name)
        assert found["cwd"] == tree
        ours = [path for path in found["path"] if path.startswith(str(folder))]
        last = [f"{tree}/own"] if name == "base" else []
        assert [path for path in ours if path != tree] == [f"{tree}/first", *last]
    assert (base["own"], head["own"]) == ("base", None)
    assert base["temporary"] != head["temporary"]


def test_nothing_that_an_arm_started_or_wrote_outside_its_tests_stays(
    whole: dict[str, Launch], folder: Path
) -> None:
    for name, launch in whole.items():
        found = read(launch, "surroundings.json")
        assert has_ended(found["child"])
        assert has_ended(found["group"])
        assert not Path(found["temporary"]).exists()
        assert {path.name for path in (folder / name).iterdir()} == {
            *("test_cells.py", "pytest.ini", "intervals.json", "surroundings.json", "iterations"),
            *OPENED_BY_PYTEST_BENCHMARK,
        }


def test_a_pair_without_room_for_its_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_pair(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(launch_module, "run_pair", run_pair)
    plan = PairPlan(number=1, first="base", hash_seed=1, core=0, timeout_s=1.0)

    with pytest.raises(WriteError) as refused:
        launch_module.launch_pair([], plan, ["a"])

    assert str(refused.value) == (
        "cannot run a pair of launches: No space left on device; its files go to "
        f"{tempfile.gettempdir()}, or to TMPDIR where that is set"
    )


@pytest.mark.parametrize("name", ["a:b", "a" * 99])
def test_a_pairs_folder_is_one_that_pythonpath_and_sockets_can_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))

    with launch_module.scratch_folder() as folder:
        assert folder.parent == Path("/tmp")
    assert not folder.exists()


# The base returns at once, head after 5 ms; each tells how often it was called.
FAR_APART = """
import os, time

def work():
    global calls
    calls += 1
    if os.environ.get("OWN") != "base":
        time.sleep(0.005)

calls = 0

def test_cell(benchmark):
    benchmark(work)
    benchmark.extra_info["perfsuite"] = {"calls": calls}
"""


def test_an_arm_that_is_slower_by_a_factor_does_not_run_the_rounds_of_the_other(
    tmp_path: Path,
) -> None:
    arms = make_arms(tmp_path, FAR_APART)

    found = pair(arms)

    base, head = (found[arm].cells["test_cells.py::test_cell"] for arm in ("base", "head"))
    assert base.record is not None
    assert head.record is not None
    # Ten rounds of a tenth of a second, where those of the base alone would be hours.
    assert len(head.rounds_s) == len(base.rounds_s) == 10
    assert head.record["calls"] < 2 * 10 * 20


LEAVES_OUT_AT_LAST = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "slow" not in item.name]
"""


def test_what_a_plugin_leaves_out_at_the_very_last_is_no_cell(tmp_path: Path) -> None:
    arms = make_arms(
        tmp_path,
        "def test_a(benchmark): benchmark(sum, ())\ndef test_slow(benchmark): benchmark(sum, ())",
    )
    for arm in arms:
        (arm.tree / "conftest.py").write_text(LEAVES_OUT_AT_LAST)

    found = pair(arms)

    for launch in found.values():
        assert launch.suite is not None
        assert [*launch.suite.cells] == ["test_cells.py::test_a"]
        assert outcomes(launch) == {"test_a": "passed"}


def test_the_plugin_of_an_arm_can_be_imported_outside_of_one() -> None:
    script = (
        "import sys, perfsuite.gate.arms.launched.arm_plugin as plugin; "
        "print(plugin.pytest_addoption.__name__, 'perfsuite_background' in sys.modules)"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (ended.stdout, ended.stderr) == ("pytest_addoption False\n", "")


@pytest.mark.parametrize("in_ini", [False, True])
def test_arms_without_pytests_cache_run_under_a_strict_configuration(
    tmp_path: Path, in_ini: bool
) -> None:
    without = ("-p", "no:cacheprovider")
    suite = "def test_cell(benchmark): benchmark.pedantic(int, rounds=2)\n"
    ini = f"[pytest]\naddopts = --strict-config {' '.join(without if in_ini else ())}\n"
    arms = make_arms(tmp_path, suite, *(() if in_ini else without), ini=ini)

    for launch in pair(arms).values():
        assert (launch.failure, outcomes(launch)) == (None, {"test_cell": "passed"})


def test_no_timer_of_pytest_counts_the_other_arms_turns(tmp_path: Path) -> None:
    suite = (
        "import time\ndef test_cell(benchmark): time.sleep(1); benchmark.pedantic(int, rounds=2)\n"
    )
    ini = "[pytest]\nfaulthandler_timeout = 0.3\nfaulthandler_exit_on_timeout = true\n"

    for launch in pair(make_arms(tmp_path, suite, ini=ini)).values():
        assert (launch.failure, outcomes(launch)) == (None, {"test_cell": "passed"})


# As pytest-timeout, pytest-randomly and pytest-rerunfailures do it.
OTHER_PLUGINS = """
import os
import pytest
from pathlib import Path

class Hooks:
    @pytest.hookspec(firstresult=True)
    def pytest_timeout_set_timer(item, settings): pass

def pytest_addhooks(pluginmanager):
    pluginmanager.add_hookspecs(Hooks)

def pytest_addoption(parser):
    parser.addoption("--randomly-seed", dest="randomly_seed", default="default")

def pytest_timeout_set_timer(item, settings):
    Path("timer").touch()

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_timeout_set_timer(item=item, settings=None)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runner = item.config.pluginmanager.get_plugin("runner")
    for _ in range(3):
        item._initrequest()
        reports = runner.runtestprotocol(item, nextitem=nextitem, log=False)
        if all(report.passed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
FAILS_ONCE = """
import os
runs = []
def test_flaky(benchmark, request):
    runs.append(1)
    benchmark.pedantic(int, rounds=4)
    assert len(runs) > 1 or os.environ["PERFSUITE_ARM_NAME"] == "base"
def test_next(benchmark, request):
    benchmark.pedantic(int, rounds=2)
    benchmark.extra_info["perfsuite"] = {"seed": request.config.option.randomly_seed}
"""


def test_plugins_that_time_seed_and_repeat_tests_do_not_part_the_arms(tmp_path: Path) -> None:
    arms = make_arms(tmp_path, FAILS_ONCE)
    for arm in arms:
        (arm.tree / "conftest.py").write_text(OTHER_PLUGINS)

    found = pair(arms)

    for launch in found.values():
        assert (launch.failure, outcomes(launch)) == (
            None,
            {"test_flaky": "passed", "test_next": "passed"},
        )
        assert [len(run.rounds_s) for run in launch.cells.values()] == [4, 2]
        assert launch.cells["test_cells.py::test_next"].record == {"seed": 7}
        assert not (launch.arm.tree / "timer").exists()


def test_files_and_folders_may_have_any_name_in_any_locale(tmp_path: Path) -> None:
    name = "test_b\xe9nch.py"
    folder = tmp_path / "a [tree] of 'mine'"
    folder.mkdir()
    arms = make_arms(folder, "")
    for arm in arms:
        (arm.tree / name).write_text("def test_cell(benchmark): benchmark.pedantic(int, rounds=2)")
    script = f"""
from pathlib import Path, PosixPath
from tiny_suites import outcomes, pair
from perfsuite.gate.arms.arm import Arm
name = {os.fsencode(name)!r}.decode("ascii", "surrogateescape")
for launch in pair({[*arms]!r}, files=(name,)).values():
    print(launch.failure, outcomes(launch))
"""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **ascii_only, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )

    assert ended.stdout.splitlines() == ["None {'test_cell': 'passed'}"] * 2, ended.stderr


def test_a_clock_may_return_any_kind_of_number(tmp_path: Path) -> None:
    arms = make_arms(
        tmp_path,
        "import time, numpy, pytest\n"
        "@pytest.mark.benchmark(timer=lambda: numpy.longdouble(time.perf_counter()))\n"
        "def test_cell(benchmark): benchmark.pedantic(sum, args=(range(1000),), rounds=3)\n",
    )

    for launch in pair(arms).values():
        (run,) = launch.cells.values()
        assert len(run.rounds_s) == 3


def test_the_closest_marker_alone_counts_as_without_a_gate(tmp_path: Path) -> None:
    arms = make_arms(
        tmp_path,
        "import pytest, time\n"
        "pytestmark = pytest.mark.benchmark(timer=time.process_time)\n"
        "@pytest.mark.benchmark(group='waits')\n"
        "def test_cell(benchmark): benchmark.pedantic(time.sleep, args=(0.002,), rounds=3)\n",
    )

    for launch in pair(arms).values():
        (run,) = launch.cells.values()
        assert min(run.rounds_s) >= 0.002  # by the clock on the wall, which sees waits
