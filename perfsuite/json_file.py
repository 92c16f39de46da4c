"""Reading JSON that somebody else wrote: whatever the file is, the answer is data or one reason.

Must not know what the data mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from perfsuite.untrusted import read_untrusted

# A thousand cells with ten thousand raw rounds of 22 characters each are 210 MiB.
MAX_JSON_BYTES: Final = 256 * 2**20


def read_json(path: Path) -> Any:
    """Return what a file holds.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no JSON, or nothing that should be read; the message says what it is.
    """
    return _decode(_read(path))


def _read(path: Path) -> str:
    data = read_untrusted(path, max_bytes=MAX_JSON_BYTES)
    if not data:
        raise ValueError("is empty")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start}") from error


def _decode(text: str) -> Any:
    # The standard library's decoder, since a NaN in somebody's extra_info, which Python writes
    # though JSON has none, must not cost them the file. Where it matters the reader refuses it.
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"is not JSON, or was cut off: {error}") from error
