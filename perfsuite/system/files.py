"""Writing files so that a reader, or a crash, never meets half of one.

A WriteError names the path and the reason. Sources: rename(2), "newpath will be atomically
replaced"; fsync of file and folder: "All File Systems Are Not Created Equal", OSDI 2014.
"""

import contextlib
import errno
import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from perfsuite.errors import WriteError
from perfsuite.system.urls import AnyPath

# Of unfinished files.
_PREFIX = ".perfsuite-"
_SUFFIX = ".tmp"
# The folder of what runs leave behind, which git ignores by a file of its own.
_RESULTS = "results"


@contextlib.contextmanager
def explained(attempt: str, advice: str = "") -> Iterator[None]:
    """Raise an OSError in the context as a WriteError that says what was attempted."""
    try:
        yield
    except OSError as error:
        raise WriteError(f"cannot {attempt}: {error.strerror or error}{advice}") from error


def real_path(path: str | Path) -> Path:
    """Return where links lead; `Path.resolve` raises a RuntimeError for a loop of them."""
    return Path(os.path.realpath(path))


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path`, or what it links to, hold exactly `data`, or leave it as it was."""
    with explained(f"write {path}"):
        if (stream := _stream(path)) is not None:
            stream.flush()
            stream.buffer.write(data)
            stream.flush()
        elif _is_device(path):
            path.write_bytes(data)
        else:
            target = real_path(path) if path.is_symlink() else path
            with written_beside(target, data) as beside:
                beside.replace(target)
                sync_folder(target.parent)


def _stream(path: Path) -> TextIO | None:
    """This process's own stream: opened anew, it would lose or overwrite what stands there."""
    return {"-": sys.stdout, "/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(str(path))


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextlib.contextmanager
def written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """Give a file beside `path` that holds `data` on the disk, to be renamed or linked.

    A file that is not renamed is removed afterwards; leavings of killed processes, before.
    """
    with contextlib.ExitStack() as left:
        with explained(f"write {path}"):
            _make_folder(path.parent)
            # Unfinished files of dead writers: the kernel has released their locks. A process id
            # would not do: containers that share a folder have their own ones.
            for abandoned in path.parent.glob(f"{_PREFIX}*{_SUFFIX}"):
                # Its writer lives, or has just finished.
                with contextlib.suppress(OSError), abandoned.open("rb") as unfinished:
                    fcntl.flock(unfinished, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    abandoned.unlink()
            handle, name = _open_locked(path.parent)
            mode = 0o644
            left.callback(Path(name).unlink, missing_ok=True)
            file = left.enter_context(os.fdopen(handle, "wb"))
            file.write(data)
            file.flush()
            with contextlib.suppress(OSError):  # a new file
                mode = stat.S_IMODE(path.stat().st_mode)
            os.fchmod(handle, mode)
            os.fsync(handle)
        yield Path(name)


def _make_folder(folder: Path) -> None:
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    with contextlib.suppress(FileExistsError):  # a file: to write below it says so more clearly
        folder.mkdir(parents=True, exist_ok=True)
    for results in (one for one in new if one.name == _RESULTS):
        (results / ".gitignore").write_text("*\n")


def check_writable(path: Path | None) -> Path | None:
    """Return a file, or refuse it now if it could not be written after hours of work."""
    if path is None or _stream(path) is not None or _is_device(path):
        return path
    # Nothing is made: a mistake that is found later leaves no empty folder.
    with explained(f"write {path}"):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        tempfile.TemporaryFile(dir=folder).close()
    return path


def append_line(path: Path, line: bytes) -> None:
    """Append one line to `path`, whole or not at all, and return when it is on the disk."""
    with explained(f"append to {path}"):
        _make_folder(path.parent)
        with path.open("a+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            data = line + b"\n"
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                data = b"\n" + data  # a killed process left half a line
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # the first reason is the one to report
                    file.truncate(end)
                raise


def remove_file(path: AnyPath) -> None:
    """Remove `path` where it exists."""
    with explained(f"remove {path}"):
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk; raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open_locked(folder: Path) -> tuple[int, str]:
    """Open a new file that is not taken for abandoned; return its handle and path."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
        with contextlib.suppress(OSError):  # without locks no file counts as abandoned
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, name
        os.close(handle)  # another process was faster than the lock
