"""What the doctor says of shared memory and disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfsuite.cli.doctor import Finding
from perfsuite.cli.doctor.storage import disk_finding, examine_folder, shared_memory_finding

MIB = 2**20
GIB = 2**30


def test_shared_memory_below_dockers_default_is_a_failure() -> None:
    assert shared_memory_finding("shared memory", Path("/dev/shm"), 64 * MIB) == Finding(
        "shared memory", "ok", "64.0 MiB free in /dev/shm"
    )
    assert shared_memory_finding("shared memory", Path("/dev/shm"), 63 * MIB) == Finding(
        "shared memory",
        "fail",
        "63.0 MiB free in /dev/shm: loader workers pass their batches through it, and need "
        "64.0 MiB",
        "docker run --shm-size=1g, or remove what fills it",
    )


def test_little_room_on_a_disk_is_a_warning_and_none_a_failure() -> None:
    folder = Path("/data")

    assert disk_finding("temporary folder", folder, GIB) == Finding(
        "temporary folder", "ok", "1.00 GiB free in /data"
    )
    assert disk_finding("temporary folder", folder, MIB) == Finding(
        "temporary folder",
        "warn",
        "1.00 MiB free in /data: data sets and traces may need 256 MiB",
        "make room",
    )
    assert disk_finding("temporary folder", folder, 0).status == "fail"


def test_a_folder_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    assert examine_folder("temporary folder", lambda: missing, disk_finding) == Finding(
        "temporary folder",
        "fail",
        f"[Errno 2] No such file or directory: '{missing}'",
        "make the folder, or work in another one",
    )


def test_a_folder_that_cannot_be_written_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere

    assert examine_folder("current directory", lambda: tmp_path, disk_finding) == Finding(
        "current directory",
        "fail",
        f"{tmp_path} cannot be written by user {os.getuid()}",
        "change its permissions, or work in another folder",
    )
