"""Reviewed exceptions: the entries of `baselines/accepted.toml`.

Each names a cell, what is accepted of it, why, and until when.
"""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfsuite.errors import SettingError
from perfsuite.records.cell import COUNT_NAMES
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import printable, read_untrusted, why_unreadable

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import AoT

# Five thousand exceptions of 200 characters each: more than people review.
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
    """The fields of every exception."""

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
    """A count, or without its name every count, may grow: by any amount, or up to `ratio` times."""

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
    """The exceptions that hold today, and those that have expired."""

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
        """Return how many times its base's a count may be: 1.0 without an exception, or inf."""
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

    An entry holds up to and on the day that it expires. Raises a SettingError that names the file,
    the line and the field where the file is not such a list.
    """
    entries = _parse(path, _read(path))
    return Accepted(
        entries=tuple(entry for entry in entries if entry.expires >= today),
        expired=tuple(entry for entry in entries if entry.expires < today),
    )


def append_entry(path: Path, entry: Entry) -> None:
    """Add an exception to a file; comments and formatting stay as people wrote them.

    Raises a SettingError where the file is not a list of exceptions or the entry cannot be written
    as text, a WriteError where the file cannot be written.
    """
    import tomlkit  # here, because sessions only read
    from tomlkit.items import Array

    data = _read(path)
    entries = _parse(path, data)
    plain = msgspec.to_builtins(entry, builtin_types=(datetime.date,))
    order = ("cell", "kind", "ratio", "to", "count", "reason", "expires")
    fields = {name: plain[name] for name in order if plain.get(name) is not None}
    document = _parse_formatted(path, data)
    inline = document.get("accepted")
    if isinstance(inline, Array):
        inline.append(tomlkit.inline_table() | fields)
        text = tomlkit.dumps(document)
    else:
        separator = "" if not data else "\n" if data.endswith(b"\n") else "\n\n"
        text = data.decode() + separator + tomlkit.dumps({"accepted": [fields]})
    try:
        edited = text.encode()
    except UnicodeEncodeError as error:
        raise SettingError(
            f"{entry.cell!r} cannot be accepted because of {entry.reason!r}: what is written to "
            f"{path} must be text, and there is {error.object[error.start]!r} in it"
        ) from error
    _write(path, edited, (*entries, entry))


def prune(path: Path, today: datetime.date) -> tuple[Entry, ...]:
    """Remove the expired exceptions of a file with the comments right above; return them.

    Raises as `append_entry`.
    """
    from tomlkit.items import AoT, Array

    data = _read(path)
    entries = _parse(path, data)
    expired = tuple(entry for entry in entries if entry.expires < today)
    if expired:
        document = _parse_formatted(path, data)
        listed = document["accepted"]
        if isinstance(listed, AoT):
            _attach_comments(document, listed)
        assert isinstance(listed, AoT | Array)
        for index in reversed(range(len(entries))):
            if entries[index] in expired:
                del listed[index]
        if not listed:
            del document["accepted"]
        kept = tuple(entry for entry in entries if entry not in expired)
        _write(path, document.as_string().encode(), kept)
    return expired


def _parse_formatted(path: Path, data: bytes) -> TOMLDocument:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(data)
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise _not_editable(path) from error


def _write(path: Path, data: bytes, entries: tuple[Entry, ...]) -> None:
    if _parse(path, data) != entries:
        raise _not_editable(path)
    write_atomically(path, data)


def _not_editable(path: Path) -> SettingError:
    return SettingError(f"{path} cannot be edited without a change of its meaning; edit it by hand")


def _attach_comments(document: TOMLDocument, tables: AoT) -> None:
    """Make the comment right above a table part of it; tomlkit has it in the table before."""
    from tomlkit.items import Comment, Null

    place = next(at for at, (_, item) in enumerate(document.body) if item is tables)
    bodies = [(document.body, place), *((one.value.body, len(one.value.body)) for one in tables)]
    for table, (body, end) in zip(tables, bodies, strict=False):
        start = end
        while start and isinstance(body[start - 1][1], Comment):
            start -= 1
        comment = "".join(item.as_string() for _, item in body[start:end])
        table.trivia.indent = comment + table.trivia.indent
        body[start:end] = [(None, Null())] * (end - start)


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
        if index < len(headers):  # an inline list has no headers
            line_number = 1 + data.count(b"\n", 0, headers[index].start())
            place += f" (line {line_number})"
        raise SettingError(printable(f"{path}: {place}: {error}; {_ALLOWED}")) from error
    return entry
