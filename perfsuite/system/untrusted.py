"""Untrusted input: read within bounds, shown as text without control characters.

Stored runs, records and lists of exceptions may be by the author of a proposed change.
"""

import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from perfsuite.errors import SettingError
from perfsuite.units import format_bytes


def open_untrusted(path: Path) -> BinaryIO:
    """Return a file to read from; raises OSError, or ValueError where it is not a regular file."""
    # A pipe or a device is refused before it is opened: opening one can block forever.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is not a regular file")
    return path.open("rb")


def read_untrusted(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a file; raises as `open_untrusted`, and ValueError for a large one."""
    with open_untrusted(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"is larger than the {format_bytes(max_bytes)} that are read")
    return data


def read_if_there(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a file, empty where there is none; raises a SettingError."""
    try:
        return read_untrusted(path, max_bytes=max_bytes)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {why_unreadable(error)}") from error


def why_unreadable(error: Exception) -> str:
    """Return an error of reading a file as a clause without its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def in_utc(when: datetime) -> datetime:
    """Return a point in time in UTC; one without a zone is taken for UTC.

    Raises a ValueError for a day outside of the calendar of UTC.
    """
    try:
        return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(f"holds the time {when.isoformat()}, out of range in UTC") from error


def printable(text: str) -> str:
    """Return text in one line, with an escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in text)


def printable_lines(text: str) -> str:
    """Return text with `printable` lines; line ends and tabs stay."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


# The range of every counter: sums and percentages of larger numbers overflow a float. Bounds also
# refuse NaN: every comparison with it is false.
MOST = 2**63 - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
# Seconds, or a rate of them.
Amount = Annotated[float, msgspec.Meta(ge=0, le=float(MOST))]
# Holds no markup, and nothing that a terminal, a tracker or a file would interpret.
Label = Annotated[str, msgspec.Meta(pattern=r"\A[\w .:/+-]{1,100}\Z")]
Sentence = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
