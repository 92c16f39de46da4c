"""Processes of a real launch that are stopped and go on, whatever ends it, and its threads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from perfsuite.gate.arms.launched import load_log
from perfsuite.system import background
from perfsuite.system.apart import end_all

# Starts a process in a session of its own and one whose parent has ended; says what it sees.
LAUNCH = """
import json, os, subprocess, sys, threading, time
import perfsuite.system.background as module
from perfsuite.system.background import Background

background = Background()
assert background.processes(looks=True) == {} and background.threads() == []
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=subprocess.PIPE, text=True)
orphan = int(shell.stdout.readline())
shell.wait()

def states():
    return [background.processes()[pid].state for pid in (child.pid, orphan)]

def states_at_rest():
    # A process that waits for a processor stops when it gets one.
    while set(found := states()) & {"R", "S"}:
        os.sched_yield()
    return found

background.stop(looks=True)
during = states_at_rest()
background.resume()
after = states()
background.stop()
again = states_at_rest()
ours = threading.Thread(target=time.sleep, args=(600,), name="perfsuite-own", daemon=True)
theirs = threading.Thread(target=time.sleep, args=(600,), daemon=True)
ours.start(), theirs.start()
is_theirs = background.threads() == [theirs.native_id] == list(background.thread_seconds())
looks, newest = [], [module.newest_process()]
list_processes, newest_process = module.list_processes, module.newest_process
module.list_processes = lambda: looks.append(1) or list_processes()
module.newest_process = lambda: newest.append(newest_process()) or newest[-1]
for _ in range(50):
    background.processes()
is_rare = len(looks) <= len(set(newest))
late = subprocess.Popen(["sleep", "600"])
is_found = late.pid in background.processes()
late.kill(), late.wait()
is_gone = late.pid not in background.processes()
facts = [is_theirs, is_rare, is_found, is_gone]
print(json.dumps([child.pid, orphan, during, after, again, facts]), flush=True)
input()
"""


def test_a_process_began_between_what_was_written_before_and_after_it(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.touch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        after.touch()
        began_s = background.read_start_s(process.pid)
        process.communicate(b"\n")

    # The kernel counts in ticks of 0.01 s, and stamps files by a clock of such ticks.
    assert before.stat().st_mtime - 0.02 < began_s < after.stat().st_mtime + 0.02


def test_both_copies_read_one_variable() -> None:
    assert background.LOG == load_log.LOG


# Conda's Python was built without it, and old seccomp profiles forbid it.
WITHOUT_PIDFD = [
    "",
    "import os; del os.pidfd_open",
    """
import os

def pidfd_open(pid, flags=0):
    raise OSError(1, "Operation not permitted")

os.pidfd_open = pidfd_open
""",
]


@pytest.fixture(params=WITHOUT_PIDFD, ids=["pidfd", "old Python", "old sandbox"])
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    log = str(tmp_path / "log")
    process = subprocess.Popen(
        [sys.executable, "-c", request.param + textwrap.dedent(LAUNCH)],
        env={**os.environ, background.GATE: str(os.getpid()), background.LOG: log},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    end_all(process, f"{background.LOG}={log}")
    process.communicate()


@pytest.mark.slow
def test_all_that_a_launch_started_is_stopped_and_goes_on_though_the_launch_is_killed(
    launch: subprocess.Popen[str],
) -> None:
    assert launch.stdout is not None
    child, orphan, *seen = json.loads(launch.stdout.readline())
    during, after, again, facts = seen
    assert during == ["T", "T"]
    assert "T" not in after
    assert again == ["T", "T"]
    assert facts == [True] * 4

    launch.kill()

    for pid in (child, orphan):
        while psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            os.sched_yield()


@pytest.mark.parametrize("pidfd_open", [os.pidfd_open, None])
def test_the_end_of_a_process_is_waited_for_with_or_without_pidfds(
    monkeypatch: pytest.MonkeyPatch, pidfd_open: object
) -> None:
    if pidfd_open is None:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=-1) as process:
        assert not background.wait_for_end(process.pid, 0.1)
        assert process.stdin is not None
        process.stdin.close()
        assert background.wait_for_end(process.pid)  # before its parent has waited for it
    assert background.wait_for_end(process.pid)


def test_where_proc_counts_no_starts_each_look_is_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background._are_starts_counted.cache_clear()
    assert background._are_starts_counted()
    background._are_starts_counted.cache_clear()
    monkeypatch.setattr(background, "_last_started", lambda: b"0\n")

    assert background.newest_process() != background.newest_process()
    monkeypatch.undo()
    background._are_starts_counted.cache_clear()


def test_a_process_that_has_hidden_its_environment_ends_with_what_started_it(
    tmp_path: Path,
) -> None:
    variable = f"{background.LOG}={tmp_path}"
    # As a worker of torchrun that names itself by setproctitle.
    hidden = "import subprocess; print(subprocess.Popen(['sleep', '600'], env={}, "
    hidden += "start_new_session=True).pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hidden],
        env={**os.environ, background.LOG: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as launcher:
        assert launcher.stdout is not None
        child = psutil.Process(int(launcher.stdout.readline()))

        leaves_more = end_all(launcher, variable)

    assert not leaves_more
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_an_ended_process_left_in_its_session_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!"], stdout=-1, start_new_session=True
    ) as one:
        assert one.stdout is not None
        child = psutil.Process(int(one.stdout.readline()))
        one.wait()

        end_all(one, f"{background.LOG}={tmp_path}")

    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def end_turns(
    waits: background.Waits, children: list[int], meanwhile: Callable[[], object]
) -> bool:
    """Whether waits are hidden where every turn ends so."""
    for _ in range(5):
        waits.end_turn(children)
        meanwhile()
        waits.begin_turn()
    return waits.are_hidden


@pytest.mark.parametrize(
    ("code", "is_hidden"),
    [
        ("import time; told(); time.sleep(600)", True),
        ("told(); input()", False),
        (
            "import socket; one = socket.create_connection(('127.0.0.1', {port})); told(); "
            "one.recv(1)",
            True,
        ),
        (
            "import threading, time; "
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); told(); "
            "input()",
            False,
        ),
    ],
)
def test_a_process_that_waits_for_a_time_as_a_turn_ends_hides_it(
    code: str, is_hidden: bool
) -> None:
    code = code.format(port=(server := socket.create_server(("127.0.0.1", 0))).getsockname()[1])
    command = [sys.executable, "-S", "-c", f"told = lambda: print(flush=True); {code}"]
    with server, subprocess.Popen(command, stdin=-1, stdout=-1) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            deadline_s = time.monotonic() + 60  # it comes to its wait in its own time
            while is_hidden and not background._is_waiting(process.pid):
                assert time.monotonic() < deadline_s
            assert end_turns(background.Waits(), [process.pid], lambda: None) == is_hidden
        finally:
            process.kill()


def test_a_thread_that_runs_in_the_other_arms_turn_hides_what_it_waited_for() -> None:
    wanted, given = threading.Semaphore(0), threading.Semaphore(0)

    def serve() -> None:
        while wanted.acquire(timeout=600):
            given.release()

    def meanwhile() -> None:
        wanted.release()
        given.acquire(timeout=600)

    threading.Thread(target=serve, daemon=True).start()

    assert end_turns(background.Waits(), [], meanwhile)
    assert not end_turns(background.Waits(), [], lambda: None)


@pytest.mark.parametrize(("settles", "is_hidden"), [(True, False), (False, True)])
def test_a_queues_thread_passes_on_what_it_was_given_before_the_other_arms_turn(
    monkeypatch: pytest.MonkeyPatch, settles: bool, is_hidden: bool
) -> None:
    used = background.Usage(0.0, 0)

    def pass_on(_: float = 0.0) -> None:
        nonlocal used, is_given
        if is_given:
            used, is_given = background.Usage(used.cpu_s + 1e-5, used.num_runs + 1), False

    monkeypatch.setattr(background, "thread_usage", lambda: {7: used})
    monkeypatch.setattr(background.time, "sleep", pass_on)
    waits = background.Waits()
    for _ in range(10):
        is_given = True
        waits.end_turn([])
        if settles:
            waits.settle()
        pass_on()  # in the other arm's turn, at the latest
        waits.begin_turn()

    assert waits.are_hidden == is_hidden


def test_what_a_thread_computes_as_a_turn_has_ended_is_work_in_the_other_arms_turn() -> None:
    wanted = threading.Semaphore(0)

    def work() -> None:
        while wanted.acquire(timeout=600):
            deadline_s = time.thread_time() + 0.02
            while time.thread_time() < deadline_s:
                pass

    threading.Thread(target=work, daemon=True).start()
    waits = background.Waits()
    for _ in range(6):
        time.sleep(0.01)  # a turn
        wanted.release()
        waits.end_turn([])
        waits.settle()
        waits.begin_turn()

    assert waits.are_hidden


def test_a_thread_that_works_and_ends_in_the_other_arms_turn_hides_its_work() -> None:
    waits = background.Waits()
    for _ in range(5):
        goes_on = threading.Event()
        thread = threading.Thread(target=goes_on.wait)
        thread.start()
        waits.end_turn([])
        goes_on.set()
        thread.join()
        waits.begin_turn()

    assert waits.are_hidden


def test_children_and_what_is_in_the_session_are_a_launchs_and_the_dead_are_not() -> None:
    tree = {
        pid: background.Process(state, parent, session, 0.0)
        for pid, state, parent, session in (
            *((1, "S", 0, 1), (7, "R", 1, 7), (8, "S", 7, 8)),
            *((9, "S", 1, 7), (10, "Z", 7, 7), (11, "S", 1, 1)),
        )
    }

    assert sorted(background.launched_processes(7, tree)) == [8, 9]


def test_a_thread_that_works_long_in_few_of_the_other_arms_turns_hides_its_work() -> None:
    wanted, done = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> None:
        while wanted.acquire(timeout=600):
            deadline_s = time.thread_time() + 0.02
            while time.thread_time() < deadline_s:
                pass
            done.release()

    waits = background.Waits()
    threading.Thread(target=work, daemon=True).start()
    for number in range(20):
        waits.end_turn([])
        if number % 10 == 5:
            wanted.release()
            done.acquire(timeout=600)
        waits.begin_turn()

    assert waits.are_hidden


def test_a_wait_at_the_end_of_each_tenth_turn_hides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = background.Waits()
    for number in range(20):
        monkeypatch.setattr(background, "_is_waiting", lambda _, number=number: number % 10 == 0)
        waits.end_turn([1])
        waits.begin_turn()

    assert waits.are_hidden
