"""A rank's loader workers do nothing while they are stopped, and go on afterwards."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from perfsuite.worker.jobs import loader_workers


def answer(connection) -> None:
    while connection.recv():
        connection.send(os.getpid())


def test_a_stopped_child_answers_only_after_it_was_resumed() -> None:
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=answer, args=(theirs,), daemon=True)
    child.start()
    try:
        loader_workers.stop()
        ours.send(True)
        while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
            pass
        assert not ours.poll(0.05)

        loader_workers.resume()

        assert ours.recv() == child.pid
    finally:
        child.kill()
        child.join()


def test_children_that_have_ended_are_passed_over() -> None:
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()

    loader_workers.stop()
    loader_workers.resume()

    assert child.exitcode == 0


def test_children_of_every_kind_and_their_children_are_stopped_and_go_on() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    both = [psutil.Process(shell.pid), psutil.Process(child)]

    def wait_until(stopped: bool) -> None:
        while any((one.status() == psutil.STATUS_STOPPED) is not stopped for one in both):
            os.sched_yield()

    try:
        loader_workers.stop()
        wait_until(stopped=True)
        loader_workers.resume()
        wait_until(stopped=False)
    finally:
        for one in both:
            one.kill()
        shell.communicate()


def test_another_rank_that_this_one_has_started_is_no_loader_worker_of_its(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    )
    own = subprocess.Popen(["sleep", "600"])
    assert shell.stdout is not None
    its_worker = int(shell.stdout.readline())
    monkeypatch.setattr(loader_workers, "other_ranks", {os.getpid(), shell.pid})
    try:
        found = loader_workers.find()
    finally:
        os.kill(its_worker, 9)
        own.kill()
        own.wait()
        shell.communicate()

    assert found & {own.pid, shell.pid, its_worker} == {own.pid}


def test_a_worker_that_was_not_forked_may_use_all_cores_as_one_that_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = os.sched_getaffinity(0)
    monkeypatch.setattr(loader_workers, "worker_cores", cores)
    one = {min(cores)}
    os.sched_setaffinity(0, one)
    try:
        with subprocess.Popen(["sleep", "600"]) as worker:
            inherited = os.sched_getaffinity(worker.pid)
            loader_workers.find()
            given = os.sched_getaffinity(worker.pid)
            worker.kill()
    finally:
        os.sched_setaffinity(0, cores)

    assert (inherited, given) == (one, cores)


FORKING = """
    import ctypes, os, sys, threading
    from perfsuite.worker.jobs.loader_workers import let_children_be_loader_workers

    def fork():
        if (child := os.fork()) == 0:
            os.read(go[0], 1)
            asked = ctypes.c_int()
            ctypes.CDLL(None).prctl(2, ctypes.byref(asked))  # PR_GET_PDEATHSIG
            os._exit(asked.value)
        children.append(child)

    let_children_be_loader_workers(sys.argv[1], tuple(os.sched_getaffinity(0)))
    go, children = os.pipe(), []
    fork()
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        os.sched_yield()
    os.write(go[1], b"12")
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_a_worker_ends_with_the_rank_and_not_with_the_thread_that_forked_it(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    script = [sys.executable, "-c", textwrap.dedent(FORKING), str(tmp_path)]

    told = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout

    # One of the main thread has SIGKILL to come; the other has not been killed.
    assert told == "9 0\n"
