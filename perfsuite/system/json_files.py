"""Untrusted JSON files: a file ends in data, or in an error with one reason."""

import json
from typing import TypeVar

import msgspec

from perfsuite.system.untrusted import open_untrusted, read_untrusted
from perfsuite.system.urls import AnyPath, RemotePath
from perfsuite.units import format_bytes

_T = TypeVar("_T")

# A thousand cells with ten thousand raw rounds of 22 characters each are 210 MiB.
MAX_JSON_BYTES = 256 * 2**20
# A mark is mostly among so many; four times as many are read next.
_FIRST_BYTES = 64 * 2**10


def read_json_as(path: AnyPath, kind: type[_T]) -> _T:
    """Return the content of a file as a value of a type.

    Raises as `read_bytes`, ValueError for no JSON, and msgspec's ValidationError for another type.
    """
    if not (data := read_bytes(path)):
        raise ValueError("is empty")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError):
        # The standard library's decoder gives the reason, or takes a NaN in a user's extra_info,
        # which Python writes though JSON has none: it costs no file, and the reader may refuse it.
        try:
            value = json.loads(text)
        except RecursionError as error:
            raise ValueError("is nested too deeply") from error
        except ValueError as error:
            raise ValueError(f"is not JSON, or was cut off: {error}") from error
        return msgspec.convert(value, kind)


def read_until(path: AnyPath, mark: bytes) -> bytes | None:
    """Return the bytes before the first `mark`, None without one; raises as `read_bytes`."""
    num_bytes = _FIRST_BYTES
    while num_bytes <= MAX_JSON_BYTES:
        if isinstance(path, RemotePath):
            data = path.read_bytes(min(num_bytes, _allowed_size(path)))
        else:
            with open_untrusted(path) as file:
                data = file.read(num_bytes)
        if (end := data.find(mark)) >= 0:
            return data[:end]
        if len(data) < num_bytes:
            return None
        num_bytes *= 4
    return None


def read_bytes(path: AnyPath) -> bytes:
    """Return all bytes of a file; raises OSError, or ValueError for a special or large one."""
    if not isinstance(path, RemotePath):
        return read_untrusted(path, max_bytes=MAX_JSON_BYTES)
    return path.read_bytes(_allowed_size(path))


def _allowed_size(path: RemotePath) -> int:
    # First, because the download may take long.
    if (size_bytes := path.size_bytes()) > MAX_JSON_BYTES:
        raise ValueError(f"is larger than the {format_bytes(MAX_JSON_BYTES)} that are read")
    return size_bytes
