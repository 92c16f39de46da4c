"""Files behind a URL: `s3://` and `gs://` through fsspec.

A `RemotePath` has the few methods of `pathlib.Path` that stored runs need, and its errors: each
error of a client library arrives as an OSError with its reason in one line.
"""

import contextlib
import errno
import functools
import importlib
import logging
import os
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from perfsuite.errors import MissingPackageError, SettingError, missing_package
from perfsuite.system.untrusted import printable, why_unreadable

# The extra of each client, which is the name of its package without "fs" at the end.
_EXTRAS = {"s3": "s3", "gs": "gcs"}
# A client's errors beside OSError.
_FAILURES: dict[str, tuple[str, ...]] = {
    "s3": (
        "botocore.exceptions:BotoCoreError",
        "botocore.exceptions:ClientError",
        "botocore.parsers:ResponseParserError",
    ),
    "gs": (
        "gcsfs.retry:HttpError",
        "gcsfs.retry:ChecksumError",
        "google.auth.exceptions:GoogleAuthError",
        "aiohttp:ClientError",
        "builtins:ValueError",  # its name for a bad request
    ),
}
# S3's answers to a conditional write that comes second: afterwards, and at the same moment. s3fs
# knows the first alone, and only from a server that names the condition, which not all do.
_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")
# s3fs takes it for a folder without files, and raises nothing.
_NO_BUCKET = "NoSuchBucket"
# As in scheme://user:password@host, which an endpoint may be and a message may repeat. A password
# may hold a slash, as almost half of Amazon's secret keys do, or an "@": mask up to the last one.
_USER_INFO = re.compile(r"(?<=://)\S*@")
# The name of an access point replaces that of a bucket, and is the only one with colons.
_ACCESS_POINT = "arn:"
# Longer reasons repeat the server's whole answer.
_MOST_REASON_CHARACTERS = 300


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or a folder behind a URL: "s3" or "gs", and a bucket's name with a name in it."""

    protocol: str
    key: str
    listed_bytes: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return printable(f"{self.protocol}://{self.key}")

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(self.protocol, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        """The folder."""
        return RemotePath(self.protocol, self.key.rpartition("/")[0])

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yield the matching files, part by part; raises an OSError, like all methods below."""
        part, is_deeper, rest = pattern.partition("/")
        try:
            with _connection(self.protocol) as files:
                entries = files.ls(self.key, detail=True)
        except FileNotFoundError:
            return
        named = {one["name"].strip("/").removeprefix(f"{self.key}/"): one for one in entries}
        for name, entry in named.items():
            # A key may be no file name: the folder itself, or steps out of it.
            if name in ("", ".", "..") or "/" in name or not fnmatchcase(name, part):
                continue
            if is_deeper and entry["type"] == "directory":
                yield from (self / name).glob(rest)
            elif not is_deeper and entry["type"] == "file":
                yield RemotePath(self.protocol, f"{self.key}/{name}", entry["size"])

    def size_bytes(self) -> int:
        """Return the size."""
        if self.listed_bytes is not None:
            return self.listed_bytes
        with _connection(self.protocol) as files:
            return int(files.info(self.key)["size"])

    def read_bytes(self, num_bytes: int) -> bytes:
        """Return the first bytes."""
        if num_bytes == 0:  # S3 refuses an empty range
            return b""
        with _connection(self.protocol) as files:
            return bytes(files.cat_file(self.key, start=0, end=num_bytes))

    def create(self, data: bytes) -> None:
        """Write a new file, and check that it stayed.

        Raises a FileExistsError where it exists, or another client wrote it at the same moment.
        """
        if self.refuses(data):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if self.read_bytes(len(data) + 1) != data:
            raise FileExistsError(errno.EEXIST, "it was written twice at the same moment")

    def refuses(self, data: bytes) -> bool:
        """Write the file, and return whether the server refuses to: there is one already."""
        # A server that does not refuse to create a file once more ignores the condition, and lets
        # each client write over the files of others.
        try:
            with _connection(self.protocol) as files:
                files.pipe_file(self.key, data, mode="create")
        except FileExistsError:
            return True
        return False

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""
        allowed = [FileNotFoundError] if missing_ok else []
        with contextlib.suppress(*allowed), _connection(self.protocol) as files:
            files.rm_file(self.key)


AnyPath: TypeAlias = Path | RemotePath


def locate(text: str, source: str) -> AnyPath:
    """Return the file or folder of a path or a URL, without a request; `source` is for messages.

    Raises a SettingError for another URL, credentials in it, or a package that is not installed.
    """
    protocol, is_url, key = text.partition("://")
    if not is_url or protocol == "file":
        return Path(key if is_url else text)
    shown, key = mask(text), key.strip("/")
    if protocol not in _EXTRAS or not key:
        raise SettingError(f"{source} is {shown!r}; use a path, s3://BUCKET/… or gs://BUCKET/…")
    bucket = key.partition("/")[0]
    if "@" in bucket or (":" in bucket and not bucket.startswith(_ACCESS_POINT)):
        shown = shown if "@" in key else f"{protocol}://***"
        raise SettingError(
            f"{source} is {shown!r}, which holds credentials or a port before its first '/'; leave "
            "them out: the client takes them from its environment variables or its own files"
        )
    try:
        _filesystem(protocol)
    except ImportError as error:
        extra = _EXTRAS[protocol]
        missing = missing_package(f"{extra}fs", extra)
        raise MissingPackageError(f"{source} begins with {protocol}://, and {missing}") from error
    return RemotePath(protocol, key)


def locate_folder(text: str, source: str) -> AnyPath:
    """Return what `locate` does; raises a SettingError for a file, too."""
    place = locate(text, source)
    if isinstance(place, Path) and place.exists() and not place.is_dir():
        raise SettingError(f"{source} is {text!r}, which is no folder; name the folder of the runs")
    return place


def mask(text: str) -> str:
    """Return text without the user and the password of any URL in it."""
    return _USER_INFO.sub("***@", text)


@functools.cache
def _filesystem(protocol: str) -> Any:
    # Imported here: a session that stores its runs in a folder does not pay for it.
    fsspec = importlib.import_module("fsspec")
    # It logs its errors, and Python prints logs without a handler, tracebacks included.
    logging.getLogger(f"{_EXTRAS[protocol]}fs").addHandler(logging.NullHandler())
    # Other clients write to the same folder, so no listing may be an old one.
    return fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)


@contextlib.contextmanager
def _connection(protocol: str) -> Iterator[Any]:
    """Give the file system of fsspec; its errors leave as an OSError with a number and a reason."""
    try:
        yield _filesystem(protocol)
    except (OSError, *map(pkgutil.resolve_name, _FAILURES[protocol])) as error:
        raise _plain(error) from error


def _plain(error: Exception) -> OSError:
    response = getattr(error.__cause__ or error, "response", None)
    details = response.get("Error") if isinstance(response, dict) else None
    answer = details.get("Code") if isinstance(details, dict) else None
    if answer == _NO_BUCKET:
        return OSError(errno.EIO, "there is no such bucket")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such file or bucket")
    if isinstance(error, FileExistsError) or answer in _TAKEN:
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    reason = " ".join(mask(why_unreadable(error)).split()) or type(error).__name__
    return OSError(errno.EIO, printable(reason[:_MOST_REASON_CHARACTERS]))
