"""The results of an equivalence check: plain values, so that they travel to the controller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from perfsuite.system.untrusted import Label

Check = Literal["T0", "T1", "T2", "checkpointing", "data"]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug that was planted in the reference, and whether the check called it a mismatch."""

    bug: str
    is_flagged: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        error: The error closest to its limit, None where nothing was compared.
        reason: What was compared and how the limit came about; for a mismatch where, and its
            likeliest cause.
    """

    check: Check
    status: NumericsStatus
    error: float | None = None
    limit: float | None = None
    planted: tuple[Planted, ...] = ()
    reason: str

    @property
    def power(self) -> str | None:
        """Such as "5/5": how many of the planted bugs were flagged; None if none was planted."""
        if not self.planted:
            return None
        return f"{sum(bug.is_flagged for bug in self.planted)}/{len(self.planted)}"


def missed(planted: Sequence[Planted]) -> str:
    """Return the bugs that were not flagged, in words; empty if all were."""
    return "; ".join(bug.bug for bug in planted if not bug.is_flagged)


NumericsStatus = Literal["equivalent", "mismatch", "no power", "not exercised"]

# The worst of several results counts.
_FROM_WORST: Final[tuple[NumericsStatus, ...]] = (
    "mismatch",
    "no power",
    "not exercised",
    "equivalent",
)


def combine_statuses(statuses: Iterable[NumericsStatus]) -> NumericsStatus:
    """Return the worst: a mismatch before no power before not exercised before equivalent."""
    return min(statuses, key=_FROM_WORST.index)


class EquivalenceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One check of one recipe.

    Attributes:
        error: The error closest to its limit, None where nothing was compared.
        limit: That limit; 0 demands equal bits.
        power: Such as "5/5": how many planted bugs the check found; None if it was given none.
        reason: As that of `Finding`; else why there is no power, or nothing was exercised.
    """

    parallel: str
    precision: str
    checkpointing: str
    world_size: int
    check: str
    status: NumericsStatus
    error: float | None
    limit: float | None
    power: str | None
    reason: str


class EquivalenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `check_equivalence`: whether a recipe computes the same as one process.

    There is a row for each check that applies, or one that says why none could be exercised, and
    for each other check the reason why it does not apply.
    """

    workload: str
    recipe: dict[str, Any]
    rows: tuple[EquivalenceRow, ...]
    inapplicable: dict[str, str]

    @property
    def worst(self) -> EquivalenceRow:
        """The row that decides: a mismatch before no power before not exercised."""
        worst = combine_statuses(row.status for row in self.rows)
        return next(row for row in self.rows if row.status == worst)

    @property
    def status(self) -> NumericsStatus:
        """The worst row's."""
        return self.worst.status

    @property
    def is_equivalent(self) -> bool:
        """Whether every check that applies found equivalence, and could have found otherwise."""
        return self.status == "equivalent"

    def __bool__(self) -> bool:
        """As `is_equivalent`, so that a bare assert of a report asserts something."""
        return self.is_equivalent

    @property
    def numerics(self) -> Numerics:
        """The worst row in the form of a cell's record."""
        row = self.worst
        return Numerics(
            status=row.status, check=row.check, error=row.error, limit=row.limit, power=row.power
        )

    def __str__(self) -> str:
        lines = [f"{row.check} {row.status}: {row.reason}" for row in self.rows]
        lines += [f"{check} does not apply: {why}" for check, why in self.inapplicable.items()]
        recipe = f"{self.recipe['parallel']}, {self.recipe['precision']}"
        if self.recipe["checkpointing"] != "none":
            recipe += f", checkpointing {self.recipe['checkpointing']}"
        return "\n".join([f"{self.workload} under {recipe}: {self.status}", *lines])


class Numerics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Result of the equivalence check that preceded the timing."""

    status: NumericsStatus
    check: Label
    error: float | None
    limit: float | None
    power: Label | None
