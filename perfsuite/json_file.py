"""Reading JSON that somebody else wrote: whatever the file is, the answer is data or one reason.

Must not know what the data mean.
"""

from __future__ import annotations

import json
from typing import Any, Final

from perfsuite.remote import AnyPath, RemotePath
from perfsuite.units import format_bytes
from perfsuite.untrusted import read_untrusted

# A thousand cells with ten thousand raw rounds of 22 characters each are 210 MiB.
MAX_JSON_BYTES: Final = 256 * 2**20


def read_json(path: AnyPath) -> Any:
    """Return what a file holds.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no JSON, or nothing that should be read; the message says what it is.
    """
    data = read_bytes(path)
    if not data:
        raise ValueError("is empty")
    try:
        return _decode(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start}") from error


def read_bytes(path: AnyPath) -> bytes:
    """Return all bytes of a file that is not too large to be read.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is nothing that should be read.
    """
    if not isinstance(path, RemotePath):
        return read_untrusted(path, max_bytes=MAX_JSON_BYTES)
    # Asked for before it is read, which may take long.
    size_bytes = path.size_bytes()
    if size_bytes > MAX_JSON_BYTES:
        raise ValueError(f"is larger than the {format_bytes(MAX_JSON_BYTES)} that are read")
    return path.read_bytes(size_bytes)


def _decode(text: str) -> Any:
    # The standard library's decoder, since a NaN in somebody's extra_info, which Python writes
    # though JSON has none, must not cost them the file. Where it matters the reader refuses it.
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"is not JSON, or was cut off: {error}") from error
