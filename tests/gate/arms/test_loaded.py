"""What a launch says that its processes loaded and started, whichever way they were started."""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
import venv
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from tiny_suites import has_ended, make_arms, pair

from perfsuite.gate.arms.arm import Loaded
from perfsuite.gate.arms.loaded import LoadLogReader, _held_files

pytestmark = pytest.mark.slow

SUITE = """
import ctypes, multiprocessing, os, shutil, signal, sqlite3, subprocess, sys, tempfile

def work():
    import in_fork
    os.kill(os.getpid(), signal.SIGKILL)  # no process can say anything at such an end

def test_quiet(benchmark):
    benchmark.pedantic(int, rounds=1)

def test_busy(benchmark):
    benchmark.pedantic(int, rounds=1)
    forked = multiprocessing.get_context("fork").Process(target=work)
    forked.start()
    forked.join()
    os.chdir("elsewhere")
    elsewhere = os.getcwd()
    own = ["-c", "import in_child, os; os.system('true')"]
    subprocess.run([sys.executable, *own], check=True)
    subprocess.run([sys.executable, "-W", "error", "-I", "-c", "pass"], check=True)
    subprocess.run(["true", "-o", "made/and_gone.so", "--ignore=./in_none.py"], env={}, check=True)
    subprocess.run(["sh", "-c", "true"], env={"PATH": os.environ["PATH"]}, check=True)
    open("page.md").close()
    subprocess.run(["./script"], check=True)
    subprocess.run(["./quiet"], check=True)
    subprocess.run(["./open"], check=True)
    subprocess.run(["cat", "told.txt"], check=True)
    subprocess.run(["tee", "--append", "out.txt"], stdin=subprocess.DEVNULL, check=True)
    ctypes.CDLL("./library.so.1")
    with open("kept.pt") as kept, open("kept.pt", "a") as more:
        more.write(kept.read())
    with open("made.pt", "w"), open("made.pt"):
        pass
    for path, flags in (("log.txt", os.O_WRONLY), ("lock", os.O_RDWR | os.O_TRUNC)):
        os.close(os.open(path, flags))
    sqlite3.connect("kept.db").close()
    os.replace("history.pt", "before.pt")
    os.rename("before.pt", "first.pt")
    os.rename("log.txt", "log.txt.1")
    os.rename("folder", "moved")
    open("first.pt").close()
    subprocess.run(["cat", "moved/inside.txt"], check=True)
    os.replace("made.pt", "lock")
    open("lock").close()
    os.rename("first.log", "again.log")
    with open("again.log", "w"), open("again.log"):
        pass
    temporary = tempfile.mkdtemp()
    os.mkdir(f"{temporary}/data")
    os.mkdir(f"{temporary}/one.pt")
    there = os.open(temporary, os.O_RDONLY)
    os.rename("one.pt", "other.pt", src_dir_fd=there, dst_dir_fd=there)
    open("other.pt").close()
    shutil.rmtree(temporary)
    try:
        open("missing.pt")
    except FileNotFoundError:
        pass
    gone = tempfile.mkdtemp()
    os.chdir(gone)
    os.rmdir(gone)
    subprocess.run(["true", "a_word"], check=True)
    os.close(os.open("null", os.O_RDONLY, dir_fd=os.open("/dev", os.O_RDONLY)))
    os.chdir(elsewhere)
    c = ctypes.CDLL(None)  # as C++ and Rust do, no audit event tells of it
    c.open(b"held.h5", os.O_RDONLY)
    c.open(b"written.h5", os.O_WRONLY)
    c.mmap(None, ctypes.c_size_t(1), 1, 2, mapped := c.open(b"mapped.arrow", os.O_RDONLY), 0)
    c.close(mapped)
    c.close(c.open(b"closed.h5", os.O_RDONLY))
    os.chdir(tempfile.mkdtemp())
    open("/dev/null").close()

def test_rest(benchmark):
    benchmark.pedantic(int, rounds=1)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that any process may load."""
    (found,) = {
        Path(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc.so" in line or "/libc-" in line
    }
    return found


def test_a_launch_tells_what_each_of_its_processes_loaded_and_started(
    tmp_path: Path, library: Path
) -> None:
    arms = make_arms(tmp_path.resolve(), SUITE)
    for arm in arms:
        for name in ("in_fork", "in_child"):
            (arm.tree / f"{name}.py").touch()
        (arm.tree / "elsewhere").mkdir()
        (arm.tree / "elsewhere/page.md").touch()
        scripts = {
            "script": "#!/bin/sh\n",
            "quiet": f"#!{sys.executable} -Es\n",
            "open": f"#!/usr/bin/env -S {sys.executable}\n",
        }
        for name, text in scripts.items():
            (arm.tree / "elsewhere" / name).write_text(text)
            (arm.tree / "elsewhere" / name).chmod(0o700)
        (arm.tree / "elsewhere/library.so.1").symlink_to(library)
        (arm.tree / "elsewhere/folder").mkdir()
        (arm.tree / "elsewhere/data").mkdir()
        named = ("kept.pt", "kept.db", "log.txt", "lock", "told.txt", "out.txt", "history.pt")
        native = ("held.h5", "written.h5", "mapped.arrow", "closed.h5")
        for name in (*named, *native, "folder/inside.txt", "first.log", "one.pt", "other.pt"):
            (arm.tree / "elsewhere" / name).touch()

    launch = pair(arms)["head"]

    quiet, busy, rest = launch.cells.values()
    assert (busy.outcome, busy.reason) == ("passed", None)
    tree = arms[1].tree
    own = {file for file in launch.loaded.files if Path(file).is_relative_to(tree)}
    names = (
        "test_cells.py",
        "in_fork.py",
        "in_child.py",
        "elsewhere/library.so.1",
        "elsewhere/page.md",
        "elsewhere/kept.db",
        "elsewhere/told.txt",
        "elsewhere/kept.pt",
        "elsewhere/history.pt",
        "elsewhere/folder/inside.txt",
        "elsewhere/made.pt",
        "elsewhere/lock",
        "elsewhere/again.log",
        "elsewhere/other.pt",
        "elsewhere/held.h5",
        "elsewhere/mapped.arrow",
    )
    read = ("pytest.ini", *(f"elsewhere/{name}" for name in scripts))
    assert own == {str(tree / name) for name in (*names, *read)}
    made = {str(tree / "elsewhere" / name) for name in ("made.pt", "lock", "again.log")}
    assert own - launch.loaded.old == made
    assert str(library) in launch.loaded.files
    assert {Path(program).name for program in launch.loaded.programs} >= {"true", "sh", "script"}
    assert launch.loaded.silent == {
        f"{sys.executable} -W error -I -c pass",
        "sh -c true",
        "./quiet",
    }
    assert launch.loaded.shells == {"sh -c true", "./script"}
    in_fork = str(tree / "in_fork.py")
    assert in_fork in rest.loaded.files & busy.loaded.recent
    assert in_fork not in rest.loaded.recent
    assert {str(library), str(tree / "test_cells.py")} <= rest.loaded.recent
    assert str(tree / "test_cells.py") in quiet.loaded.files
    assert str(tree / "in_fork.py") not in quiet.loaded.files
    assert busy.loaded.files <= launch.loaded.files
    assert (quiet.loaded.silent, busy.loaded.silent) == (frozenset(), launch.loaded.silent)


UNLOGGED = """
import os, subprocess, sys

CODE = "while __import__('time').process_time() < 1: pass\\nprint()\\ninput()"
CHILDREN = []

def start(before):
    command = ["sh", "-c", f'{before}; exec "$0" -c "$1"', sys.executable, CODE]
    CHILDREN.append(subprocess.Popen(command, stdin=-1, stdout=-1))
    CHILDREN[-1].stdout.readline()

def test_cell(benchmark):
    benchmark.pedantic(int, rounds=1)
    start("true")
    start(f"export PYTHONPATH={os.getcwd()}")
    start(f"cd / && export PYTHONPATH={os.getcwd()}")

def test_replaced(benchmark):
    benchmark.pedantic(int, rounds=1)
    leave = "import os, sys; os.environ['PYTHONPATH'] = '/'; os.execv(sys.executable, sys.argv)"
    command = [sys.executable, "-c", leave, "-c", CODE]
    CHILDREN.append(subprocess.Popen(command, stdin=-1, stdout=-1))
    CHILDREN[-1].stdout.readline()
"""


def test_a_process_that_runs_without_the_log_is_seen_where_it_lives_long(tmp_path: Path) -> None:
    launch = pair(make_arms(tmp_path, UNLOGGED))["base"]

    command, elsewhere = sorted(launch.cells["test_cells.py::test_cell"].loaded.silent)
    assert command.startswith(f"{sys.executable} -c while")
    assert elsewhere == f"{command}, in /"
    (replaced,) = launch.cells["test_cells.py::test_replaced"].loaded.silent - {command, elsewhere}
    assert replaced.startswith("-c -c while")
    assert len(launch.loaded.shells) == 4


DAEMON = """
import os, subprocess, sys

def test_cell(benchmark):
    benchmark.pedantic(int, rounds=1)
    with open(os.path.dirname(__file__) + "/daemon", "w") as daemon:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        leaves = os.environ["PERFSUITE_ARM_NAME"] == "base"
        print(subprocess.Popen(command, start_new_session=leaves).pid, file=daemon)
"""


def test_a_daemon_serves_no_later_launch_and_is_said(tmp_path: Path) -> None:
    arms = make_arms(tmp_path, DAEMON)

    launches = pair(arms)

    assert [launch.failure for launch in launches.values()] == [None, None]
    assert [launch.leaves_daemon for launch in launches.values()] == [True, False]
    for arm in arms:
        assert has_ended(int((arm.tree / "daemon").read_text()))


def test_an_arm_that_cannot_log_what_it_loads_is_ended(tmp_path: Path) -> None:
    first, second = make_arms(tmp_path, "def test_cell(benchmark): benchmark(int)\n")
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    unseen = dataclasses.replace(first, python_options=("-S",), environment=path)

    failure = pair([unseen, second])["base"].failure

    assert str(failure).startswith("it cannot log what it loads; start Python without -S")


def test_what_the_environment_imports_at_the_start_is_run_and_logged(tmp_path: Path) -> None:
    suite = "import sys\ndef test_cell(benchmark): benchmark(int), sys.of_the_environment\n"
    venv.create(tmp_path / "venv")
    (site_packages,) = (tmp_path / "venv").resolve().glob("lib/python*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site_packages / "early.pth").write_text(f"import early, site; site.addsitedir({ours!r})\n")
    (site_packages / "early.py").touch()
    (site_packages / "sitecustomize.py").write_text("import sys; sys.of_the_environment = 1")
    python = str(tmp_path / "venv/bin/python")

    launches = pair([dataclasses.replace(arm, python=python) for arm in make_arms(tmp_path, suite)])

    for launch in launches.values():
        assert launch.cells["test_cells.py::test_cell"].outcome == "passed"
        assert {f"{site_packages}/{name}.py" for name in ("early", "sitecustomize")} <= (
            launch.loaded.files
        )


def test_a_line_that_a_full_disk_has_cut_makes_a_launch_one_that_did_not_say_what_it_loads(
    tmp_path: Path,
) -> None:
    (tmp_path / "head.loaded").write_bytes(
        b"7 process ''\n7 file '/head/al7 file '/head/beta.py'\n"
    )

    loaded = LoadLogReader(tmp_path / "head.loaded").read()

    assert loaded.silent == {"a process whose log was cut"}


LOOKED_AT = """
import multiprocessing
import pathlib
import pytest

def load():
    import changed

def test_in_a_process_that_ends(benchmark):
    benchmark.pedantic(int, rounds=1)
    forked = multiprocessing.get_context("fork").Process(target=load)
    forked.start()
    forked.join()

@pytest.mark.parametrize("number", range(3))
def test_in_one_that_stays(benchmark, number, server):
    benchmark.pedantic(int, rounds=1)
    if number == 1:
        load()

@pytest.fixture(scope="session")
def server():
    yield
    pathlib.Path(__file__).with_name("ended").touch()
"""


def test_a_look_ends_once_every_later_cell_would_have_what_it_looks_for(tmp_path: Path) -> None:
    head = make_arms(tmp_path, LOOKED_AT)[1]
    (head.tree / "changed.py").touch()

    def is_enough(loaded: Loaded) -> bool:
        return str(head.tree / "changed.py") in loaded.recent

    launch = pair([head], is_enough=is_enough)["head"]

    assert launch.failure is None
    assert [is_enough(run.loaded) for run in launch.cells.values()] == [True, False, True]
    assert [*launch.cells][-1].endswith("stays[1]")
    assert (head.tree / "ended").exists()  # by its fixture, as at the end of any session


def test_memory_that_programs_share_by_its_name_is_a_file_that_they_hold() -> None:
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert f"/dev/shm/{segment.name}" in {*_held_files(os.getpid(), ("/no such folder/",))}
    finally:
        segment.close()
        segment.unlink()
