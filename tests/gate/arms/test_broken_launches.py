"""Launches that end early, hang, differ or run alone, and a gate that is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tiny_suites import has_ended, make_arms, outcomes, pair

from perfsuite.gate.arms import launch as launches_module
from perfsuite.gate.arms.arm import Arm
from perfsuite.gate.arms.build import build_base

pytestmark = pytest.mark.slow

# --- arms that end, hang or differ ---


@pytest.mark.parametrize(
    ("deed", "how"),
    [
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    ],
)
def test_an_arm_that_ends_in_a_cell_is_said_with_its_last_lines(
    tmp_path: Path, deed: str, how: str
) -> None:
    suite = f"""
import os, signal
def test_first(benchmark): benchmark.pedantic(int, rounds=2)
def test_ends(benchmark):
    def end():
        if os.environ["PERFSUITE_ARM_NAME"] == "head":
            os.write(2, b"last words\\n")
            {deed}
    benchmark.pedantic(end, rounds=3)
"""
    launches = pair(make_arms(tmp_path, suite, "-s"))

    base, head = launches["base"], launches["head"]
    assert head.failure is not None
    first, *_, last = head.failure.splitlines()
    assert first == f"its pytest ended early with {how}"
    assert last == "  | test_cells.py .last words"
    assert base.failure is not None
    assert base.failure.splitlines()[0] == "the other arm ended early"
    assert list(head.cells) == ["test_cells.py::test_first"]


def test_a_launch_that_fails_on_a_full_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(free=4096)
    monkeypatch.setattr(launches_module.shutil, "disk_usage", lambda _: full)
    suite = "import os\nos._exit(1)\n"

    launches = pair(make_arms(tmp_path, suite))

    for launch in launches.values():
        assert launch.failure is not None
        assert launch.failure.splitlines()[-1].endswith(" is full: 4.00 KiB left")


@pytest.mark.parametrize("is_apart", [False, True])
def test_an_arm_that_hangs_in_its_turn_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_apart: bool
) -> None:
    monkeypatch.setattr(launches_module, "_GRACE_S", 0.1)
    suite = """
import os, pathlib, time
def test_hangs(benchmark):
    pathlib.Path("pid").write_text(str(os.getpid()))
    benchmark.pedantic(time.sleep, (600,), rounds=1)
"""
    launches = pair(make_arms(tmp_path, suite), timeout_s=2.0, is_apart=is_apart)

    for launch in launches.values():
        assert launch.failure is not None
        assert launch.failure.splitlines()[0] == (
            "no progress for 2 s, also without the other arm" if is_apart else "no progress for 2 s"
        )
        assert launch.cells == {}
        assert has_ended(int((launch.arm.tree / "pid").read_text()))


def test_an_arm_that_stops_its_session_does_not_keep_the_other_waiting(tmp_path: Path) -> None:
    suite = """
import os, pytest
def test_stops(benchmark):
    benchmark.pedantic(int, rounds=2)
    if os.environ["PERFSUITE_ARM_NAME"] == "base":
        pytest.exit("enough")
def test_second(benchmark): benchmark.pedantic(int, rounds=2)
"""
    launches = pair(make_arms(tmp_path, suite))

    assert [launch.failure for launch in launches.values()] == [None, None]
    assert outcomes(launches["base"]) == {}
    assert outcomes(launches["head"]) == {"test_stops": "passed", "test_second": "passed"}


def test_a_cell_that_one_arm_lacks_is_run_by_neither(tmp_path: Path) -> None:
    arms = make_arms(tmp_path, "def test_a(benchmark): benchmark.pedantic(int, rounds=2)\n")
    with (arms[1].tree / "test_cells.py").open("a") as file:
        file.write("def test_b(benchmark): benchmark.pedantic(int, rounds=2)\n")

    launches = pair(arms, ["test_cells.py::test_b", "test_cells.py::test_a"])

    assert [outcomes(launch) for launch in launches.values()] == [{"test_a": "passed"}] * 2


def test_an_arm_that_cannot_begin_is_said_with_pytests_own_words(tmp_path: Path) -> None:
    base, head = make_arms(tmp_path, "def test_a(benchmark): benchmark(int)\n")
    (base.tree / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")

    launches = pair([base, head])

    assert launches["base"].suite is None
    assert launches["base"].failure is not None
    first, *lines = launches["base"].failure.splitlines()
    assert first == "its pytest ended early with exit code 4"
    assert any("unrecognized arguments: --no-such-option" in line for line in lines)
    assert launches["base"].refusal == "unrecognized arguments: --no-such-option"


def test_a_module_that_hides_one_of_pythons_is_said(tmp_path: Path) -> None:
    base, head = make_arms(tmp_path, "def test_a(benchmark): benchmark(int)\n")
    for name in ("profile.py", "chunk.py", "io.py", "shop.py"):
        (head.tree / name).write_text("1 / 0")

    failure = pair([base, dataclasses.replace(head, import_roots=(head.tree,))])["head"].failure

    assert failure is not None
    hidden = f"{head.tree}/profile.py hides Python's own module of that name; rename it"
    assert failure.splitlines()[-1] == f"  | {hidden}"
    assert failure.count("hides Python") == 1


def test_an_arm_whose_path_is_missing_is_said_with_pytests_own_words(tmp_path: Path) -> None:
    _, head = make_arms(tmp_path, "def test_a(benchmark): benchmark(int)\n", "no_such_file.py")

    launch = pair([head], [])["head"]

    assert launch.suite is None
    assert launch.failure is not None
    first, *lines = launch.failure.splitlines()
    assert first == "its pytest ended before it had collected anything"
    assert any("file or directory not found: no_such_file.py" in line for line in lines)
    assert launch.refusal == "file or directory not found: no_such_file.py"


def test_a_test_that_is_named_in_a_broken_file_says_why_the_file_is_broken(tmp_path: Path) -> None:
    _, head = make_arms(tmp_path, "import no_such_module\n", "test_cells.py::test_a")

    launch = pair([head], [])["head"]

    why = "ModuleNotFoundError: No module named 'no_such_module'"
    assert (launch.suite, launch.refusal) == (None, None)
    assert launch.why_not_collected == launch.failure == why


def test_a_file_that_an_arm_cannot_collect_keeps_no_other_cell_from_running(
    tmp_path: Path,
) -> None:
    suite = "def test_a(benchmark): benchmark.pedantic(int, rounds=2)\n"
    base, head = make_arms(tmp_path, suite)
    (base.tree / "test_broken.py").write_text("import no_such_module\n")

    launches = pair([base, head])

    why = "ModuleNotFoundError: No module named 'no_such_module'"
    for launch in launches.values():
        assert (launch.failure, outcomes(launch)) == (None, {"test_a": "passed"})
    assert launches["head"].why_not_collected is None
    assert launches["base"].why_not_collected == f"test_broken.py: {why}"
    found = launches["base"].suite
    assert found is not None
    assert found.why_broken("test_broken.py::test_b") == f"test_broken.py: {why}"
    assert found.why_broken("test_cells.py::test_a") is None


def test_an_arm_alone_tells_what_it_has_and_what_its_markers_ask(tmp_path: Path) -> None:
    suite = """
import pytest
pytestmark = pytest.mark.perf(tolerance="1%", floor="1ms")
@pytest.fixture
def train_benchmark(benchmark): pass
@pytest.mark.perf(limit="9%", tolerance="3%")
def test_a(train_benchmark): pass
def test_b(benchmark): pass
def test_c(): pass
"""
    _, head = make_arms(tmp_path, suite, ini="[pytest]\npythonpath = lib .\nmarkers = perf\n")

    launches = pair([head], [], first="head")

    suite_of_head = launches["head"].suite
    asked = {"fixture": None, "tolerance": "1%", "floor": "1ms"}
    assert launches["head"].failure is None
    assert launches["head"].cells == {}
    assert suite_of_head is not None
    assert suite_of_head.cells == {
        "test_cells.py::test_a": asked
        | {"fixture": "train_benchmark", "limit": "9%", "tolerance": "3%"},
        "test_cells.py::test_b": asked,
    }
    assert suite_of_head.pythonpath == (head.tree / "lib", head.tree)


def test_a_pair_that_profiles_names_the_costly_functions(tmp_path: Path) -> None:
    suite = """
def slow(): return sum(range(20000))
def outer(): return slow() + slow()
def test_a(benchmark): benchmark.pedantic(outer, rounds=2, iterations=3)
"""
    launches = pair(make_arms(tmp_path, suite), profiles=True)

    for launch in launches.values():
        (run,) = launch.cells.values()
        calls = {name: calls for name, calls, _ in run.profile}
        own_s = [own_s for *_, own_s in run.profile]
        assert (calls["test_cells.py:outer"], calls["test_cells.py:slow"]) == (1, 2)
        assert own_s == sorted(own_s, reverse=True)
        assert len(run.rounds_s) == 2


# --- the gate itself ---


def test_no_arm_and_nothing_that_it_started_outlives_a_gate_that_is_killed(tmp_path: Path) -> None:
    suite = """
import os, pathlib, subprocess, time
def test_long(benchmark):
    started = [subprocess.Popen(["sleep", "600"], start_new_session=own).pid for own in (0, 1)]
    pathlib.Path("writing").write_text(f"{os.getpid()} {started[0]} {started[1]}")
    pathlib.Path("writing").rename("pids")
    benchmark.pedantic(time.sleep, (600,), rounds=1)
"""
    arms = make_arms(tmp_path, suite)
    with start_gate(arms) as gate:
        pids = [pid for arm in arms for pid in wait_for_numbers(arm.tree / "pids", gate)]
        running = [psutil.Process(pid) for pid in pids]
        gate.send_signal(signal.SIGKILL)

        _, alive = psutil.wait_procs(running, timeout=3)

    assert alive == []
    assert len(running) == 6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_arm_that_is_ending_outlives_a_pair_that_a_signal_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    suite = """
import atexit, os, pathlib, time
def test_quick(benchmark): benchmark.pedantic(int, rounds=2)
@atexit.register
def end():
    pathlib.Path("writing").write_text(str(os.getpid()))
    pathlib.Path("writing").rename("pids")
    time.sleep(600)
"""
    arms = make_arms(tmp_path, suite)
    with start_gate(arms, listing=tmp_path / "left") as gate:
        pids = {pid for arm in arms for pid in wait_for_numbers(arm.tree / "pids", gate)}
        gate.send_signal(number)
        gate.wait()

    left = {int(pid) for pid in (tmp_path / "left").read_text().split()}
    assert len(pids) == 2
    assert not pids & left


def test_a_build_does_not_outlive_a_gate_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from perfsuite.gate.arms.build import build_base
command = "sleep 600 & echo $$ $! > writing; mv writing pids; wait"
folder = Path({str(tmp_path)!r})
build_base(
    command,
    folder,
    site=folder / "site",
    root=folder,
    python=sys.executable,
    environment=dict(os.environ),
)
"""
    with start(script) as gate:
        running = [psutil.Process(pid) for pid in wait_for_numbers(tmp_path / "pids", gate)]
        gate.send_signal(signal.SIGKILL)

        _, alive = psutil.wait_procs(running, timeout=3)

    assert alive == []
    assert len(running) == 2


def test_a_build_ends_with_its_shell_and_what_it_left_behind_is_ended(tmp_path: Path) -> None:
    failed = build_base(
        "(sleep 3; touch later) & echo no compiler; exit 3",
        tmp_path,
        site=tmp_path / "site",
        root=tmp_path,
        python=sys.executable,
        environment=dict(os.environ),
    )

    assert failed is not None
    assert failed.endswith("ended with code 3\n  | no compiler")
    assert not (tmp_path / "later").exists()


def start_gate(
    arms: Sequence[Arm], *, listing: Path | None = None
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A process that runs a pair, as a gate would, and then lists the processes that live."""
    return start(f"""
import tempfile
import psutil
from pathlib import Path, PosixPath
from perfsuite.gate.arms.arm import Arm, PairPlan
from perfsuite.gate.arms.launch import run_pair
arms = {[*arms]!r}
from perfsuite.system.signals import ends_on_signals
plan = PairPlan(number=1, first="base", hash_seed=1, core=0, timeout_s=60)
try:
    with ends_on_signals(), tempfile.TemporaryDirectory() as scratch:
        run_pair(arms, plan, scratch=Path(scratch))
finally:
    listing = {listing!r}
    if listing:
        living = [one for one in psutil.process_iter() if one.status() != psutil.STATUS_ZOMBIE]
        listing.write_text(" ".join(str(one.pid) for one in living))
""")


@contextlib.contextmanager
def start(script: str) -> Iterator[subprocess.Popen[bytes]]:
    gate = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "TMPDIR": "/tmp"})
    try:
        yield gate
    finally:
        gate.kill()
        gate.wait()


def wait_for_numbers(path: Path, gate: subprocess.Popen[bytes]) -> list[int]:
    while not path.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the gate ended with {gate.wait(0.05)}")
    return [int(number) for number in path.read_text().split()]
