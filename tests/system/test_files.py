"""Files are whole or as they were: on a full disk, after a crash, at a bad path."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from perfsuite.errors import WriteError
from perfsuite.system.files import append_line, check_writable, write_atomically

_SIZE_LIMIT = 4096


def exit_code_of(child: Callable[[], None]) -> int | None:
    """Run a function in a process that may crash, and return how it ended."""
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# --- write_atomically ---


def test_a_file_and_its_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "results" / "deep" / "run.json"

    write_atomically(path, b"{}")

    assert path.read_bytes() == b"{}"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names_in(path.parent) == ["run.json"]


def test_git_ignores_a_folder_of_results_that_is_made_and_none_that_was_there(
    tmp_path: Path,
) -> None:
    write_atomically(tmp_path / "a" / "results" / "report" / "index.html", b"")
    append_line(tmp_path / "b" / "results" / "cells.jsonl", b"{}")
    (tmp_path / "c" / "results").mkdir(parents=True)
    append_line(tmp_path / "c" / "results" / "cells.jsonl", b"{}")

    ignored = {one.parent.parent.name: one.read_text() for one in tmp_path.rglob(".gitignore")}
    assert ignored == {"a": "*\n", "b": "*\n"}


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"a longer text than the new one")

    write_atomically(path, b"new")

    assert path.read_bytes() == b"new"


def test_a_link_stays_and_what_it_leads_to_is_replaced_with_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared.toml").write_bytes(b"old")
    (tmp_path / "shared.toml").chmod(0o664)
    link = tmp_path / "accepted.toml"
    link.symlink_to("shared.toml")

    write_atomically(link, b"new")

    assert link.is_symlink()
    assert (tmp_path / "shared.toml").read_bytes() == b"new"
    assert (tmp_path / "shared.toml").stat().st_mode & 0o777 == 0o664


@pytest.mark.parametrize("path", ["/dev/stdout", "-"])
def test_a_stream_of_this_process_gets_the_data_after_what_was_printed(
    tmp_path: Path, path: str
) -> None:
    write = (
        "import pathlib, sys, perfsuite.system.files as files\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "files.check_writable(path), files.check_writable(pathlib.Path('/dev/null'))\n"
        "print('before')\n"
        "files.write_atomically(path, b'{}\\n')\n"
        "print('after')\n"
    )
    kept = Path("/dev/stdout").readlink()

    with (tmp_path / "out").open("wb") as out:
        subprocess.run(
            [sys.executable, "-c", write, path],
            stdout=out,
            check=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # as most people run it
        )

    assert (tmp_path / "out").read_text() == "before\n{}\nafter\n"
    assert names_in(tmp_path) == ["out"]
    assert Path("/dev/stdout").readlink() == kept


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")

    with files_of_at_most(_SIZE_LIMIT), pytest.raises(WriteError) as failure:
        write_atomically(path, b"x" * (_SIZE_LIMIT + 1))

    assert str(failure.value) == f"cannot write {path}: File too large"
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["run.json"]


def test_a_crash_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")

    def crash_while_renaming() -> None:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        write_atomically(path, b"new")

    assert exit_code_of(crash_while_renaming) == -signal.SIGKILL
    assert path.read_bytes() == b"old"


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")

    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["run.json"]


def test_a_folder_that_cannot_be_synced_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("perfsuite.system.files.sync_folder", refuse)

    with pytest.raises(WriteError) as failure:
        write_atomically(tmp_path / "run.json", b"{}")

    assert str(failure.value) == f"cannot write {tmp_path}/run.json: Permission denied"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    path = tmp_path / "results" / "run.json"

    with pytest.raises(WriteError) as failure:
        write_atomically(path, b"{}")

    assert str(failure.value) == f"cannot write {path}: Not a directory"


def test_a_path_that_is_a_folder_is_named_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.mkdir()

    with pytest.raises(WriteError) as failure:
        write_atomically(path, b"{}")

    assert str(failure.value) == f"cannot write {path}: Is a directory"
    assert names_in(tmp_path) == ["run.json"]


# --- append_line ---


def test_lines_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "results" / "cells.jsonl"

    append_line(path, b"one")
    append_line(path, b"two")

    assert path.read_bytes() == b"one\ntwo\n"


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    append_line(path, b"x" * 4000)

    with files_of_at_most(_SIZE_LIMIT), pytest.raises(WriteError) as failure:
        append_line(path, b"y" * 200)

    assert str(failure.value) == f"cannot append to {path}: No space left on device"
    assert path.read_bytes() == b"x" * 4000 + b"\n"


def test_a_line_of_which_nothing_fits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    append_line(path, b"x" * (_SIZE_LIMIT - 1))

    with files_of_at_most(_SIZE_LIMIT), pytest.raises(WriteError) as failure:
        append_line(path, b"y")

    assert str(failure.value) == f"cannot append to {path}: File too large"
    assert path.stat().st_size == _SIZE_LIMIT


def test_a_device_without_room_is_named() -> None:
    with pytest.raises(WriteError) as failure:
        append_line(Path("/dev/full"), b"line")

    assert str(failure.value) == "cannot append to /dev/full: No space left on device"


# --- check_writable ---


def test_what_can_be_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text("{}")

    for one in (path, None, tmp_path / "new" / "gate.md"):
        assert check_writable(one) is one

    assert path.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "reason"), [("folder", "Is a directory"), ("file/gate.json", "Not a directory")]
)
def test_what_cannot_be_written_is_refused_beforehand(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")

    with pytest.raises(WriteError) as failure:
        check_writable(tmp_path / name)

    assert str(failure.value) == f"cannot write {tmp_path / name}: {reason}"


def test_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    write_atomically(path, b"data")

    assert path.is_fifo()
    assert os.read(reader, 9) == b"data"
    os.close(reader)
