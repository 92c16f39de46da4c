"""Writing files so that a reader, or a crash, never meets half of one.

Must not know what is written. Source of the method: rename(2), "newpath will be atomically
replaced", and the need to fsync file and folder from "All File Systems Are Not Created Equal"
(Pillai et al., OSDI 2014).
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from perfsuite.errors import WriteError
from perfsuite.remote import AnyPath


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path` hold exactly `data`, or leave it as it was.

    Raises:
        WriteError: The folder or the file cannot be written; names the path and the reason.
    """
    beside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(0o644)
        Path(beside).replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if beside:
            Path(beside).unlink(missing_ok=True)


def check_writable(*paths: Path | None) -> None:
    """Refuse now what could not be written after hours of work; a None is no file.

    Raises:
        WriteError: A folder cannot be made or written, or is where a file should be.
    """
    for path in filter(None, paths):
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise WriteError(f"cannot write {path}: {error.strerror or error}") from error


def append_line(path: Path, line: bytes) -> None:
    """Append one line to `path` and return when it is on the disk.

    A line that could not be written whole is taken back, so the file always ends with a newline.

    Raises:
        WriteError: The line cannot be written; names the path and the reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            data = line + b"\n"
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # the first reason is the one to tell
                    file.truncate(end)
                raise
    except OSError as error:
        raise WriteError(f"cannot append to {path}: {error.strerror or error}") from error


def remove_file(path: AnyPath) -> None:
    """Remove `path` where it exists.

    Raises:
        WriteError: It cannot be removed; names the path and the reason.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(f"cannot remove {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
