"""Reviewed exceptions: the entries of `baselines/accepted.toml`.

A gate heeds those that the change itself brings; the merge of the change spends them; a
quarantine holds from then on.
"""

import datetime
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from perfsuite.errors import SettingError
from perfsuite.records.cell import COUNT_NAMES
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import printable, read_if_there
from perfsuite.units import default_tolerance, format_ratio, parse_ratio, parse_seconds

# Five thousand exceptions of 200 characters each: more than people review.
_MAX_FILE_BYTES = 2**20

_ALLOWED = (
    'use [[accepted]] with cell, kind = "slowdown" (and ratio), "removed", "quarantined", '
    '"renamed" (and to), "count" (and, to accept less than any increase, count and ratio) or '
    '"limit" (and the looser limit, tolerance, floor, policy or gate), reason, and expires = '
    "YYYY-MM-DD"
)
# In place of a cell's name: every cell.
EVERY_CELL = "*"
# With the comments right above.
_HEADER = re.compile(rb"^(?:[ \t]*#.*\n)*[ \t]*\[\[[ \t]*accepted[ \t]*\]\]", re.MULTILINE)


class _Entry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"
):
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


class Quarantine(_Entry, frozen=True, kw_only=True, tag="quarantined"):
    """The cell is measured, and changes no exit code."""


class Rename(_Entry, frozen=True, kw_only=True, tag="renamed"):
    """The cell is now called `to`."""

    to: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell == EVERY_CELL:
            raise ValueError(f"cell is {EVERY_CELL!r}; name the one cell that is renamed")
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

    @property
    def most_ratio(self) -> float:
        """How many times the base's it may be."""
        return math.inf if self.ratio is None else self.ratio


_PARSERS = {"limit": parse_ratio, "tolerance": parse_ratio, "floor": parse_seconds}
LOOSENED = (*_PARSERS, "policy", "gate")


class Loosening(_Entry, frozen=True, kw_only=True, tag="limit"):
    """What judges the cell may be looser than in the base: up to these values."""

    limit: str | None = None
    tolerance: str | None = None
    floor: str | None = None
    policy: Literal["advisory"] | None = None
    gate: Literal["off"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values:
            raise ValueError("nothing is loosened; name limit, tolerance, floor, policy or gate")
        if self.policy and self.cell != EVERY_CELL:
            raise ValueError(f"cell is {self.cell!r}; a policy is the session's, so use '*'")
        for name in _PARSERS:
            self.most(name)

    @property
    def values(self) -> dict[str, str]:
        """Those that it names."""
        return {name: value for name in LOOSENED if (value := getattr(self, name)) is not None}

    def most(self, name: str) -> float:
        """The looser limit, tolerance (by default of that limit) or floor (in seconds), else 0."""
        if (text := getattr(self, name)) is None:
            return default_tolerance(self.most("limit")) if name == "tolerance" else 0.0
        try:
            return _PARSERS[name](text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


Entry = Slowdown | Removal | Quarantine | Rename | Increase | Loosening
_Kind = TypeVar("_Kind", bound=_Entry)


def _require_ratio(ratio: float) -> None:
    if not (math.isfinite(ratio) and ratio > 1):
        raise ValueError(f"ratio is {ratio!r}; use a number above 1, such as 1.08 for 8 % more")


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The exceptions that hold today, those that have expired, and those that the base has too."""

    entries: tuple[Entry, ...] = ()
    expired: tuple[Entry, ...] = ()
    spent: tuple[Entry, ...] = ()
    # Of cells that a quarantine names: why it does not hold, unless another does.
    vain: Mapping[str, str] = field(default_factory=dict)

    def removal(self, cell: str) -> Removal | None:
        """Return what says that the base's cell is gone on purpose."""
        return next(self.of(cell, Removal), None)

    def rename_of(self, cell: str) -> Rename | None:
        """Return what gives the base's cell another name."""
        return next(self.of(cell, Rename), None)

    def name_in_base(self, cell: str) -> str:
        """Return the base's name of head's cell."""
        renames = (entry for entry in self.entries if isinstance(entry, Rename))
        return next((entry.cell for entry in renames if entry.to == cell), cell)

    def slowdown(self, cell: str) -> Slowdown | None:
        """Return what lets the cell take most of its base's time."""
        return max(self.of(cell, Slowdown), key=lambda entry: entry.ratio, default=None)

    def increase(self, cell: str, count: str) -> Increase | None:
        """Return what lets one of the cell's counts grow most."""
        entries = (one for one in self.of(cell, Increase) if one.count in (None, count))
        return max(entries, key=lambda entry: entry.most_ratio, default=None)

    def most_ratio(self, cell: str, count: str) -> float:
        """Return how many times the base's one of the cell's counts may be."""
        increase = self.increase(cell, count)
        return 1.0 if increase is None else increase.most_ratio

    def is_spent(self, cell: str, *, is_gone: bool) -> bool:
        """Whether the base has an entry too: that the cell is gone, or else that it costs more."""
        kinds = (Removal, Rename) if is_gone else (Slowdown, Increase)
        return any(isinstance(one, kinds) and one.cell in (cell, EVERY_CELL) for one in self.spent)

    def quarantine(self, cell: str) -> str | None:
        """Return what keeps the cell's verdict from the exit code, in words."""
        return next(map(in_words, self.of(cell, Quarantine)), None)

    def why_counted(self, cell: str) -> str | None:
        """Return why a cell that a quarantine names counts all the same; None where none does."""
        return None if self.quarantine(cell) else self.vain.get(cell, self.vain.get(EVERY_CELL))

    def of(self, cell: str, kind: type[_Kind]) -> Iterator[_Kind]:
        """Yield the entries of a kind that are of the cell, or of every one."""
        entries = (entry for entry in self.entries if isinstance(entry, kind))
        return (entry for entry in entries if entry.cell in (cell, EVERY_CELL))


def read_accepted(path: Path, today: datetime.date) -> Accepted:
    """Return all exceptions of a file, which need not exist; a SettingError says what is wrong."""
    return _accept(_parse(path, _read(path)), today)


def read_brought(path: Path, base: bytes, today: datetime.date) -> Accepted:
    """Return the exceptions of head's file that `base`, the base's own file, does not list.

    Of quarantines, those that it does list. Where the base's file cannot be read, head's mends it;
    none counts. Raises as `read_accepted`.
    """
    entries = _parse(path, _read(path))
    ours: Counter[Entry] = Counter(one for one in entries if not isinstance(one, Quarantine))
    try:
        listed = Counter(_parse(path, base))
    except SettingError:
        listed = ours
    quarantines = [one for one in listed if isinstance(one, Quarantine)]
    new = "its quarantine counts once the base lists it"
    vain = {one.cell: new for one in entries if isinstance(one, Quarantine)}
    vain |= {one.cell: f"its quarantine expired on {one.expires}" for one in quarantines}
    accepted = _accept((*quarantines, *(ours - listed)), today)
    spent = () if listed is ours else tuple(ours & listed)
    return replace(accepted, spent=spent, vain=vain)


def _accept(entries: Iterable[Entry], today: datetime.date) -> Accepted:
    return Accepted(
        entries=tuple(entry for entry in entries if entry.expires >= today),
        expired=tuple(entry for entry in entries if entry.expires < today),
    )


def in_words(entry: Entry) -> str:
    """Return an exception in one sentence."""
    match entry:
        case Slowdown():
            what = f"may take up to {format_ratio(entry.ratio - 1)} more time"
        case Removal():
            what = "may be gone"
        case Quarantine():
            what = "is quarantined"
        case Rename():
            what = f"may be called {entry.to}"
        case Increase():
            most = "any amount" if entry.ratio is None else f"up to {format_ratio(entry.ratio - 1)}"
            what = f"may have {most} more of {entry.count or 'every count'}"
        case Loosening():
            values = (f"{name} {value}" for name, value in entry.values.items())
            what = f"may be judged by {', '.join(values)}"
    cell = "every cell" if entry.cell == EVERY_CELL else entry.cell
    return printable(f"{cell} {what} until {entry.expires}: {entry.reason}")


def append_entry(path: Path, entry: Entry) -> None:
    """Add an exception to a file, whose comments and formatting stay as people wrote them."""
    import tomlkit  # here, because sessions only read

    data = _read(path)
    entries = _parse(path, data)
    plain = msgspec.to_builtins(entry, builtin_types=(datetime.date,))
    order = dict.fromkeys(("cell", "kind", *plain))
    fields = {name: plain[name] for name in order if plain[name] is not None}
    fields |= {name: fields.pop(name) for name in ("reason", "expires")}
    separator = "" if not data else "\n" if data.endswith(b"\n") else "\n\n"
    try:
        edited = data + (separator + tomlkit.dumps({"accepted": [fields]})).encode()
    except UnicodeEncodeError as error:
        raise SettingError(
            f"{entry.cell!r} cannot be accepted because of {entry.reason!r}: what is written to "
            f"{path} must be text, and there is {error.object[error.start]!r} in it"
        ) from error
    _write(path, edited, (*entries, entry))


def prune(path: Path, today: datetime.date) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Remove expired exceptions and the comments right above; return them, and those that stay."""
    data = _read(path)
    entries = _parse(path, data)
    parted = _accept(entries, today)
    if not parted.expired:
        return (), entries
    is_kept = [entry.expires >= today for entry in entries]
    starts = [header.start() for header in _HEADER.finditer(data)]
    tables = [data[start:end] for start, end in pairwise([*starts, len(data)])]
    edited = data[: len(data) - sum(map(len, tables))] + b"".join(compress(tables, is_kept))
    _write(path, edited, parted.entries)
    return parted.expired, parted.entries


def _write(path: Path, data: bytes, entries: tuple[Entry, ...]) -> None:
    try:
        is_meant = _parse(path, data) == entries
    except SettingError:
        is_meant = False
    if not is_meant:  # as of a list in one line
        raise SettingError(f"{path} cannot be edited without a change of meaning; edit it by hand")
    write_atomically(path, data)


def _read(path: Path) -> bytes:
    return read_if_there(path, max_bytes=_MAX_FILE_BYTES)


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
    entries: list[Entry] = []
    for table in tables:
        try:
            entries.append(msgspec.convert(table, Entry))
        except msgspec.ValidationError as error:
            place, headers = f"entry {len(entries) + 1}", [*_HEADER.finditer(data)]
            if len(entries) < len(headers):  # an inline list has no headers
                place += f" (line {len(data[: headers[len(entries)].end()].splitlines())})"
            raise SettingError(printable(f"{path}: {place}: {error}; {_ALLOWED}")) from error
    return tuple(entries)
