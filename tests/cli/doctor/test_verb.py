"""The doctor's examination as a whole, and the timing session that it may meet."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfsuite.cli.doctor.findings import Finding
from perfsuite.cli.doctor.verb import examine, examine_timing_lock
from perfsuite.system.timing_lock import LOCK_DIR, TimingLock


def test_the_examination_covers_every_subject_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.cli.doctor.verb.examine_torch", list)

    subjects = [finding.subject for finding in examine()]

    assert [subject for subject in subjects if not subject.startswith("GPU ")] == [
        "perfsuite",
        "cores",
        "frequency governor",
        "turbo",
        "load",
        "steal time",
        "memory",
        "shared memory",
        "timing session",
        "GPUs",
    ]


def test_the_examination_imports_no_torch_here() -> None:
    script = "import sys, perfsuite.cli.doctor; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def hold_lock(is_held: Any, may_end: Any) -> None:
    lock = TimingLock(wait_s=0, say=print)
    lock.acquire()
    is_held.set()
    may_end.wait()


def test_another_timing_session_is_a_warning_that_names_it(lock_folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    is_held, may_end = context.Event(), context.Event()
    other = context.Process(target=hold_lock, args=(is_held, may_end))
    other.start()
    try:
        assert is_held.wait(10)
        finding = examine_timing_lock(TimingLock(wait_s=0, say=print))
    finally:
        may_end.set()
        other.join()

    assert finding == Finding(
        "timing session",
        "warn",
        f"another timing session (process {other.pid}) holds this machine",
        "wait until it has ended",
    )


def test_a_free_machine_is_left_free(lock_folder: Path) -> None:
    examined = examine_timing_lock(TimingLock(wait_s=0, say=print))
    again = examine_timing_lock(TimingLock(wait_s=0, say=print))

    assert examined == again == Finding("timing session", "ok", "no other")


def test_a_lock_that_cannot_be_made_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_DIR, str(tmp_path))
    lock = tmp_path / f"perfsuite-{os.getuid()}.lock"
    lock.mkdir()

    finding = examine_timing_lock(TimingLock(wait_s=0, say=print))

    assert finding == Finding(
        "timing session",
        "fail",
        f"cannot lock {lock}: Is a directory; set PERFSUITE_LOCK_DIR to a writable folder",
        "make the folder writable",
    )
