"""What the equivalence checks report, in plain values: one row for each check of a recipe."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from perfsuite.records.recipe import EPSILONS, Recipe
from perfsuite.system.untrusted import Label

Check = Literal["T0", "T1", "T2", "checkpointing", "data"]
NumericsStatus = Literal["equivalent", "mismatch", "no power", "not exercised"]

NO_REFERENCE = "no reference= is given"  # why a user's own code is not exercised
_FROM_WORST = ("mismatch", "no power", "not exercised", "equivalent")


def semantic_check(precision: str) -> Check:
    """Return the check that holds a precision to one process: T2 if it is coarser than float32."""
    return "T2" if EPSILONS[precision] > EPSILONS["fp32"] else "T1"


def combine_statuses(statuses: Iterable[NumericsStatus]) -> NumericsStatus:
    """Return the worst: a mismatch before no power before not exercised before equivalent."""
    return min(statuses, key=_FROM_WORST.index)


class EquivalenceRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One check of one recipe.

    Attributes:
        error: The error closest to its limit, None where nothing was compared.
        limit: That limit; 0 requires equal bits.
        power: Such as "5/5": how many planted bugs the check found; None if none was planted.
        reason: What was compared and how the limit is derived; for a mismatch where it is and its
            likeliest cause; otherwise why the check has no power or was not exercised.
    """

    parallel: str
    precision: str
    checkpointing: str
    world_size: int
    check: Check
    status: NumericsStatus
    error: float | None
    limit: float | None
    power: str | None
    reason: str

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        check: Check,
        status: NumericsStatus,
        reason: str,
        *,
        error: float | None = None,
        limit: float | None = None,
        planted: Mapping[str, bool] | None = None,
    ) -> "EquivalenceRow":
        """Return the row of a recipe; `planted` says of each planted bug whether it was found."""
        return cls(
            parallel=recipe.parallel,
            precision=recipe.precision,
            checkpointing=recipe.checkpointing,
            world_size=recipe.plan.world_size,
            check=check,
            status=status,
            error=error,
            limit=limit,
            power=f"{sum(planted.values())}/{len(planted)}" if planted else None,
            reason=reason,
        )


class EquivalenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `check_equivalence`: whether a recipe computes the same as one process.

    Attributes:
        rows: One for each check that applies, or one that says why none could be exercised.
        inapplicable: By name, why each of the other checks does not apply to the recipe.
    """

    workload: str
    recipe: dict[str, Any]
    rows: tuple[EquivalenceRow, ...]
    inapplicable: dict[str, str]

    @property
    def worst(self) -> EquivalenceRow:
        """The row that decides: a mismatch before no power before not exercised."""
        return min(self.rows, key=lambda row: _FROM_WORST.index(row.status))

    @property
    def status(self) -> NumericsStatus:
        """The status of the worst row."""
        return self.worst.status

    @property
    def is_equivalent(self) -> bool:
        """Whether every check that applies found equivalence, and would have found a bug."""
        return self.status == "equivalent"

    def __bool__(self) -> bool:
        """Return `is_equivalent`, so that `assert report` checks the result."""
        return self.is_equivalent

    @property
    def numerics(self) -> "Numerics":
        """The worst row in the form that a cell's record keeps."""
        return msgspec.convert(self.worst, Numerics, from_attributes=True)

    def __str__(self) -> str:
        lines = [f"{row.check} {row.status}: {row.reason}" for row in self.rows]
        lines += [f"{check} does not apply: {why}" for check, why in self.inapplicable.items()]
        recipe = f"{self.recipe['parallel']}, {self.recipe['precision']}"
        if self.recipe["checkpointing"] != "none":
            recipe += f", checkpointing {self.recipe['checkpointing']}"
        return "\n".join([f"{self.workload} under {recipe}: {self.status}", *lines])


class Numerics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of the equivalence check that preceded the timing."""

    status: NumericsStatus
    check: Label
    error: float | None
    limit: float | None
    power: Label | None
