"""Files behind a URL: `s3://` and `gs://` through fsspec, and `memory://` of this process alone.

A `RemotePath` has the few methods of `pathlib.Path` that stored runs need, and its errors: whatever
a client library raises arrives as an OSError with its reason in one line. Must not know what the
files hold.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeAlias

from perfsuite.errors import SettingError
from perfsuite.system.untrusted import printable


@dataclass(frozen=True, kw_only=True)
class _Protocol:
    """What stands behind one kind of URL.

    Attributes:
        package: What fsspec needs for it.
        extra: The extra of perfsuite that brings the package; None where it is there anyway.
        failures: What the package raises beside OSError, as module:class.
    """

    package: str
    extra: str | None = None
    failures: tuple[str, ...] = ()


_PROTOCOLS: Final = {
    "s3": _Protocol(
        package="s3fs",
        extra="s3",
        failures=(
            "botocore.exceptions:BotoCoreError",
            "botocore.exceptions:ClientError",
            "botocore.parsers:ResponseParserError",
        ),
    ),
    "gs": _Protocol(
        package="gcsfs",
        extra="gcs",
        failures=(
            "gcsfs.retry:HttpError",
            "gcsfs.retry:ChecksumError",
            "google.auth.exceptions:GoogleAuthError",
            "aiohttp:ClientError",
            "builtins:ValueError",  # its name for a bad request
        ),
    ),
    "memory": _Protocol(package="fsspec"),
}
_ALLOWED = "use a path, or a URL that begins with s3://, gs:// or memory://"
# What S3 answers where a conditional write comes second: afterwards, and at the same moment. s3fs
# knows the first alone, and only of a server that names the condition, which not all do.
_TAKEN: Final = ("PreconditionFailed", "ConditionalRequestConflict")
# To s3fs it is the same as a folder without files, which is nothing wrong.
_NO_BUCKET: Final = "NoSuchBucket"
# As in scheme://user:password@host, which an endpoint may be and a message may repeat. A password
# may hold a slash, as almost half of the secret keys of Amazon do, or an "@": up to the last one.
_USER_INFO = re.compile(r"(?<=://)\S*@")
# An access point's name stands for a bucket's, and is the only one with colons.
_ACCESS_POINT: Final = "arn:"
# Longer reasons repeat what the server sent.
_MOST_REASON_CHARACTERS: Final = 300
# memory:// looks for a name and writes it in two steps; the others' servers do so in one.
_CREATING: Final = threading.Lock()


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or a folder behind a URL.

    Attributes:
        protocol: "s3", "gs" or "memory".
        key: Bucket and name, without a slash at either end.
        listed_bytes: The size, where a listing has told it.
    """

    protocol: str
    key: str
    listed_bytes: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return printable(f"{self.protocol}://{self.key}")

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.protocol, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last part without its suffix."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return RemotePath(self.protocol, self.key.rpartition("/")[0])

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the files whose names from here match, part by part.

        Raises:
            OSError: The folder cannot be listed.
        """
        part, is_deeper, rest = pattern.partition("/")
        for name, entry in self._list().items():
            if not fnmatchcase(name, part):
                continue
            if is_deeper and entry["type"] == "directory":
                yield from (self / name).glob(rest)
            elif not is_deeper and entry["type"] == "file":
                yield RemotePath(self.protocol, f"{self.key}/{name}", entry["size"])

    def _list(self) -> dict[str, dict[str, Any]]:
        try:
            with _connection(self.protocol) as files:
                entries = files.ls(self.key, detail=True)
        except FileNotFoundError:
            return {}
        names = {entry["name"].strip("/").removeprefix(f"{self.key}/"): entry for entry in entries}
        # A key may hold what is no name of a file: the folder itself, or steps out of it.
        return {
            name: entry
            for name, entry in names.items()
            if name not in ("", ".", "..") and "/" not in name
        }

    def size_bytes(self) -> int:
        """Return the size.

        Raises:
            OSError: There is no such file, or it cannot be asked for.
        """
        if self.listed_bytes is not None:
            return self.listed_bytes
        with _connection(self.protocol) as files:
            return int(files.info(self.key)["size"])

    def read_bytes(self, num_bytes: int) -> bytes:
        """Return the first bytes.

        Raises:
            OSError: There is no such file, or it cannot be read.
        """
        if num_bytes == 0:  # a range of nothing is refused by S3
            return b""
        with _connection(self.protocol) as files:
            return bytes(files.cat_file(self.key, start=0, end=num_bytes))

    def create(self, data: bytes) -> None:
        """Write a file that nobody has written, and see that it stayed.

        Raises:
            FileExistsError: Somebody has it, or wrote it at the same moment.
            OSError: It cannot be written.
        """
        with _CREATING, _connection(self.protocol) as files:
            files.pipe_file(self.key, data, mode="create")
        if self.read_bytes(len(data) + 1) != data:
            raise FileExistsError(errno.EEXIST, "somebody wrote it at the same moment")

    def refuses(self, data: bytes) -> bool:
        """Return whether the server refuses to create the file, which holds the data, once more.

        One that does not ignores the condition, and would let anybody write over anybody.

        Raises:
            OSError: The server cannot be asked.
        """
        try:
            with _connection(self.protocol) as files:
                files.pipe_file(self.key, data, mode="create")
        except FileExistsError:
            return True
        return False

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file.

        Raises:
            OSError: It cannot be removed, or is not there and has to be.
        """
        try:
            with _connection(self.protocol) as files:
                files.rm_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise


AnyPath: TypeAlias = Path | RemotePath


def locate(text: str, source: str) -> AnyPath:
    """Return what a path or a URL names; nothing is read of it.

    >>> print(locate("memory://bucket/baselines/", "--storage"))
    memory://bucket/baselines
    >>> locate("file://./baselines", "--storage")
    PosixPath('baselines')

    Args:
        text: What was given.
        source: Where, for messages.

    Raises:
        SettingError: The URL is none that can be read here: of another kind, without a bucket, with
            credentials in it, or of a package that is not installed.
    """
    protocol, is_url, key = text.partition("://")
    if not is_url or protocol == "file":
        return Path(key if is_url else text)
    shown = mask(text)
    if protocol not in _PROTOCOLS:
        raise SettingError(f"{source} is {shown!r}; {_ALLOWED}")
    key = key.strip("/")
    if not key:
        raise SettingError(
            f"{source} is {shown!r}, which names no bucket; use {protocol}://BUCKET/…"
        )
    bucket = key.partition("/")[0]
    if "@" in bucket or (":" in bucket and not bucket.startswith(_ACCESS_POINT)):
        shown = shown if "@" in key else f"{protocol}://***"
        raise SettingError(
            f"{source} is {shown!r}, which holds credentials or a port before its first '/'; leave "
            "them out: the client takes them from its environment variables or its own files"
        )
    _load(protocol, source)
    return RemotePath(protocol, key)


def mask(text: str) -> str:
    """Return text without the user and the password of any URL in it.

    >>> mask("cannot reach https://me:secret@host/bucket")
    'cannot reach https://***@host/bucket'
    """
    return _USER_INFO.sub("***@", text)


def _load(protocol: str, source: str) -> None:
    needed = _PROTOCOLS[protocol]
    try:
        _filesystem(protocol)
    except ImportError as error:
        raise SettingError(
            f"{source} begins with {protocol}://, which needs the package {needed.package}: "
            f"pip install 'perfsuite[{needed.extra}]'"
        ) from error


@functools.cache
def _filesystem(protocol: str) -> Any:
    # Imported where it is used: no session pays for it whose runs are stored in a folder.
    fsspec = importlib.import_module("fsspec")
    # It logs what it raises, and Python prints what nobody listens to, tracebacks included.
    logging.getLogger(_PROTOCOLS[protocol].package).addHandler(logging.NullHandler())
    # Others write to the same folder, so a listing is never to be an old one.
    return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)


@functools.cache
def _failures(protocol: str) -> tuple[type[Exception], ...]:
    names = (name.split(":") for name in _PROTOCOLS[protocol].failures)
    others = (getattr(importlib.import_module(module), name) for module, name in names)
    return (OSError, *others)


@contextlib.contextmanager
def _connection(protocol: str) -> Iterator[Any]:
    """The file system of fsspec, whose errors leave as an OSError with a number and a reason."""
    try:
        yield _filesystem(protocol)
    except _failures(protocol) as error:
        raise _plain(error) from error


def _plain(error: Exception) -> OSError:
    answer = _answer_of(error)
    if answer == _NO_BUCKET:
        return OSError(errno.EIO, "there is no such bucket")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such file or bucket")
    if isinstance(error, FileExistsError) or answer in _TAKEN:
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    reason = " ".join(mask(reason).split()) or type(error).__name__
    return OSError(errno.EIO, printable(reason[:_MOST_REASON_CHARACTERS]))


def _answer_of(error: BaseException) -> str | None:
    """The server's own word for what is wrong, where there is one."""
    response = getattr(error.__cause__ or error, "response", None)
    details = response.get("Error") if isinstance(response, dict) else None
    return details.get("Code") if isinstance(details, dict) else None
