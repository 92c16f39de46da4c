"""Reviewed exceptions: the lines of `baselines/accepted.toml`.

Each names a cell, what is accepted of it, why, and until when. Must not know how a cell is judged.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from perfsuite.errors import SettingError
from perfsuite.records.cell import COUNT_NAMES
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import printable, read_untrusted, why_unreadable

# Five thousand exceptions of 200 characters each: more than anybody reviews.
_MAX_FILE_BYTES = 2**20

_ALLOWED = (
    'use [[accepted]] with cell, kind = "slowdown" (and ratio), "removed", "renamed" (and to) or '
    '"count" (and, to accept less than any increase, count and ratio), reason, and '
    "expires = YYYY-MM-DD"
)
_HEADER = re.compile(rb"^[ \t]*\[\[[ \t]*accepted[ \t]*\]\]", re.MULTILINE)


class _Entry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"
):
    """What every exception names."""

    cell: str
    reason: str
    expires: datetime.date

    def __post_init__(self) -> None:
        for name in ("cell", "reason"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")


class Slowdown(_Entry, frozen=True, kw_only=True, tag="slowdown"):
    """The cell may take up to `ratio` times as long as its base."""

    ratio: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_ratio(self.ratio)


class Removal(_Entry, frozen=True, kw_only=True, tag="removed"):
    """The cell is gone on purpose."""


class Rename(_Entry, frozen=True, kw_only=True, tag="renamed"):
    """The cell is now called `to`."""

    to: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.to.strip() or self.to == self.cell:
            raise ValueError(f"to is {self.to!r}; use another name than the cell's")


class Increase(_Entry, frozen=True, kw_only=True, tag="count"):
    """A count, or the peak memory, may grow.

    Attributes:
        count: One of `COUNT_NAMES`; None is each of them.
        ratio: Up to so many times the base's; None is any increase.
    """

    count: str | None = None
    ratio: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is not None and self.count not in COUNT_NAMES:
            raise ValueError(f"count is {self.count!r}; use one of {', '.join(COUNT_NAMES)}")
        if self.ratio is not None:
            _require_ratio(self.ratio)


Entry = Slowdown | Removal | Rename | Increase


def _require_ratio(ratio: float) -> None:
    if not (math.isfinite(ratio) and ratio > 1):
        raise ValueError(f"ratio is {ratio!r}; use a number above 1, such as 1.08 for 8 % more")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The exceptions that hold today, and those that do no more."""

    entries: tuple[Entry, ...] = ()
    expired: tuple[Entry, ...] = ()

    def is_removed(self, cell: str) -> bool:
        """Whether the base's cell is gone on purpose."""
        return any(isinstance(entry, Removal) for entry in self._of(cell))

    def renamed_to(self, cell: str) -> str | None:
        """Return head's name of the base's cell, None where it kept its name."""
        return next((entry.to for entry in self._of(cell) if isinstance(entry, Rename)), None)

    def renamed_from(self, cell: str) -> str | None:
        """Return the base's name of head's cell, None where it kept its name."""
        renames = (entry for entry in self.entries if isinstance(entry, Rename))
        return next((entry.cell for entry in renames if entry.to == cell), None)

    def allowed_slowdown(self, cell: str) -> float:
        """Return how many times its base's time the cell may take; 1.0 without an exception."""
        ratios = (entry.ratio for entry in self._of(cell) if isinstance(entry, Slowdown))
        return max(ratios, default=1.0)

    def allowed_increase(self, cell: str, count: str) -> float:
        """Return how many times its base's a count may be: 1.0 without an exception, or inf.

        Args:
            cell: Full name of the cell.
            count: One of `COUNT_NAMES`.
        """
        ratios = (
            math.inf if entry.ratio is None else entry.ratio
            for entry in self._of(cell)
            if isinstance(entry, Increase) and entry.count in (None, count)
        )
        return max(ratios, default=1.0)

    def _of(self, cell: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.cell == cell)


def read_accepted(path: Path, today: datetime.date) -> Accepted:
    """Return the exceptions of a file; none where there is no file.

    Args:
        path: Usually `baselines/accepted.toml`.
        today: An entry holds up to and on the day that it expires.

    Raises:
        SettingError: The file is not such a list; names the file, the line and the field.
    """
    entries = _parse(path, _read(path))
    return Accepted(
        entries=tuple(entry for entry in entries if entry.expires >= today),
        expired=tuple(entry for entry in entries if entry.expires < today),
    )


def append_entry(path: Path, entry: Entry) -> None:
    """Add an exception at the end of a file; what it holds already stays byte for byte.

    Raises:
        SettingError: The file is not a list of exceptions, or the entry cannot be written as text.
        WriteError: The file cannot be written.
    """
    data = _read(path)
    _split(path, data, _parse(path, data))
    try:
        block = _as_toml(entry).encode()
    except UnicodeEncodeError as error:
        raise SettingError(
            f"{entry.cell!r} cannot be accepted because of {entry.reason!r}: what is written to "
            f"{path} must be text, and there is {error.object[error.start]!r} in it"
        ) from error
    separator = b"" if not data else b"\n" if data.endswith(b"\n") else b"\n\n"
    write_atomically(path, data + separator + block)


def prune(path: Path, today: datetime.date) -> tuple[Entry, ...]:
    """Remove the expired exceptions of a file with the comments above and below; return them.

    Raises:
        SettingError: The file is not a list of exceptions, or not one that can be cut by lines.
        WriteError: The file cannot be written.
    """
    data = _read(path)
    entries = _parse(path, data)
    head, *blocks = _split(path, data, entries)
    expired = tuple(entry for entry in entries if entry.expires < today)
    if expired:
        kept = [block for entry, block in zip(entries, blocks, strict=True) if entry not in expired]
        write_atomically(path, b"".join([head, *kept]))
    return expired


def _read(path: Path) -> bytes:
    try:
        return read_untrusted(path, max_bytes=_MAX_FILE_BYTES)
    except FileNotFoundError:
        return b""
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {why_unreadable(error)}") from error


def _parse(path: Path, data: bytes) -> tuple[Entry, ...]:
    try:
        document = tomllib.loads(data.decode())
    # ValueError, because an integer of thousands of digits is one that tomllib lets through.
    except (ValueError, RecursionError) as error:
        raise SettingError(printable(f"{path} is not TOML: {error}; {_ALLOWED}")) from error
    tables = document.pop("accepted", [])
    if document or not isinstance(tables, list):
        name = next(iter(document), "accepted")
        raise SettingError(f"{path} has {name!r} at its top; {_ALLOWED}")
    return tuple(_convert(path, data, number, table) for number, table in enumerate(tables))


def _convert(path: Path, data: bytes, index: int, table: Any) -> Entry:
    try:
        entry: Entry = msgspec.convert(table, Entry)
    except msgspec.ValidationError as error:
        headers = list(_HEADER.finditer(data))
        place = f"entry {index + 1}"
        if index < len(headers):
            line_number = 1 + data.count(b"\n", 0, headers[index].start())
            place += f" (line {line_number})"
        raise SettingError(printable(f"{path}: {place}: {error}; {_ALLOWED}")) from error
    return entry


def _split(path: Path, data: bytes, entries: tuple[Entry, ...]) -> list[bytes]:
    """Return what precedes the first entry, and then each with the comment right above it."""
    starts = []
    for header in _HEADER.finditer(data):
        start = header.start()
        while start and data[:start].splitlines()[-1].lstrip().startswith(b"#"):
            start = data.rfind(b"\n", 0, start - 1) + 1
        starts.append(start)
    # Unequal where they stand in an inline list, or where a string holds such a header.
    if len(starts) != len(entries):
        raise SettingError(
            f"{path} cannot be edited by lines: it has {len(entries)} exceptions and {len(starts)} "
            "lines that begin with [[accepted]]; edit it by hand"
        )
    return [data[start:end] for start, end in pairwise([0, *starts, len(data)])]


def _as_toml(entry: Entry) -> str:
    fields = msgspec.to_builtins(entry, builtin_types=(datetime.date,))
    order = ("cell", "kind", "ratio", "to", "count", "reason", "expires")
    values = {name: fields[name] for name in order if fields.get(name) is not None}
    return "\n".join(
        ["[[accepted]]", *(f"{name} = {_value(value)}" for name, value in values.items()), ""]
    )


def _value(value: str | float | datetime.date) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML one, except that TOML does not take a bare DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return value.isoformat() if isinstance(value, datetime.date) else repr(value)
