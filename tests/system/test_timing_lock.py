"""The machine-wide lock, with a second session in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from perfsuite.errors import BusyMachineError, SettingError, WriteError
from perfsuite.system.timing_lock import LOCK_DIR, TimingLock

_FORK = multiprocessing.get_context("fork")


def hold(pipe: Connection) -> None:
    lock = TimingLock(wait_s=0, say=print)
    lock.acquire()
    pipe.send("held")
    pipe.recv()
    lock.release()


class Other:
    """A session in another process that holds the lock until told to end."""

    def __init__(self) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=hold, args=(theirs,))
        self.process.start()
        assert self._pipe.poll(10)
        assert self._pipe.recv() == "held"

    def end(self) -> None:
        if self.process.is_alive():
            self._pipe.send("end")
            self.process.join()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this worker may hold its machine."""
    monkeypatch.setenv(LOCK_DIR, str(tmp_path))


@pytest.fixture
def other(own_folder: None) -> Iterator[Other]:
    session = Other()
    yield session
    session.end()


def test_a_free_machine_is_taken_at_once_and_again_without_a_word() -> None:
    said: list[str] = []
    lock = TimingLock(wait_s=0, say=said.append)

    lock.acquire()
    lock.acquire()

    assert said == []
    lock.release()


def test_a_second_session_waits_and_says_who_holds_the_machine(
    tmp_path: Path, other: Other
) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        other.end()

    lock = TimingLock(wait_s=10, say=say)
    lock.acquire()

    assert said == [
        f"perfsuite: another timing session (process {other.process.pid}) holds this machine; "
        "waiting for it, 10 s at most (pytest: --perf-wait=0 would not)"
    ]
    assert (tmp_path / f"perfsuite-{os.getuid()}.holder").read_text() == str(os.getpid())
    lock.release()


def test_a_second_session_that_may_not_wait_is_refused(other: Other) -> None:
    said: list[str] = []

    with pytest.raises(BusyMachineError) as refused:
        TimingLock(wait_s=0, say=said.append).acquire()

    assert str(refused.value) == (
        f"another timing session (process {other.process.pid}) holds this machine, "
        "and --perf-wait=0 does not wait; run again later"
    )
    assert said == []


def test_waiting_ends_after_the_time_that_was_given(other: Other) -> None:
    with pytest.raises(BusyMachineError) as refused:
        TimingLock(wait_s=0.01, say=print).acquire()

    assert str(refused.value) == (
        f"another timing session (process {other.process.pid}) holds this machine, "
        "still after 0.01 s (--perf-wait); run again when it has ended"
    )


def test_a_session_that_comes_later_does_not_overtake_one_that_waits(tmp_path: Path) -> None:
    first, is_over = TimingLock(wait_s=0, say=print), threading.Event()
    begins_to_wait = threading.Event()

    def wait_and_hold() -> None:  # a thread releases only what it has acquired itself
        with TimingLock(wait_s=10, say=lambda _: begins_to_wait.set()):
            is_over.wait(10)

    first.acquire()
    thread = threading.Thread(target=wait_and_hold)
    thread.start()
    assert begins_to_wait.wait(10)
    turn = FileLock(tmp_path / f"perfsuite-{os.getuid()}.next")
    is_next = False
    while not is_next:
        try:
            turn.acquire(timeout=0)
        except Timeout:
            is_next = True
        turn.release()

    first.release()
    with pytest.raises(BusyMachineError):
        first.acquire()  # at once, as the next session of a script does

    is_over.set()
    thread.join()
    first.acquire()
    first.release()


def test_a_killed_session_no_longer_holds_the_machine(other: Other, tmp_path: Path) -> None:
    other.kill()

    lock = TimingLock(wait_s=0, say=print)
    lock.acquire()

    assert (tmp_path / f"perfsuite-{os.getuid()}.holder").read_text() == str(os.getpid())
    lock.release()


def test_a_released_machine_can_be_taken_by_the_next_session() -> None:
    first = TimingLock(wait_s=0, say=print)
    first.acquire()
    first.release()

    next_session = Other()

    assert next_session.process.is_alive()
    next_session.end()


def test_letting_go_of_a_machine_that_is_not_held_is_harmless(other: Other) -> None:
    lock = TimingLock(wait_s=0, say=print)

    lock.release()

    with pytest.raises(BusyMachineError):
        lock.acquire()


def test_a_folder_for_locks_that_is_none_is_a_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_DIR, str(tmp_path / "none"))

    with pytest.raises(SettingError) as failure:
        TimingLock(wait_s=0, say=print)

    assert str(failure.value) == (
        f"{LOCK_DIR} names {tmp_path}/none, which is no folder; make it, or unset it"
    )


def test_a_lock_that_cannot_be_made_names_its_path(tmp_path: Path) -> None:
    lock = tmp_path / f"perfsuite-{os.getuid()}.lock"
    lock.mkdir()

    with pytest.raises(WriteError) as failure:
        TimingLock(wait_s=0, say=print).acquire()

    assert str(failure.value) == (
        f"cannot lock {lock}: Is a directory; set {LOCK_DIR} to a writable folder"
    )


def test_a_session_that_cannot_leave_its_name_does_not_keep_the_machine(tmp_path: Path) -> None:
    (tmp_path / f"perfsuite-{os.getuid()}.holder").mkdir()
    lock = TimingLock(wait_s=0, say=print)

    with pytest.raises(WriteError) as failure:
        lock.acquire()

    assert str(failure.value) == (
        f"cannot write {tmp_path}/perfsuite-{os.getuid()}.holder: Is a directory"
    )
    (tmp_path / f"perfsuite-{os.getuid()}.holder").rmdir()
    Other().end()
