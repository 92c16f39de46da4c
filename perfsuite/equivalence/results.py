"""What one check found, and what a check is made of.

Plain values only, so that they travel to the controller. Must not know what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfsuite.records import NumericsStatus

Check = Literal["T0", "T1", "T2", "checkpointing", "data"]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug that was planted in the reference to see whether the check would have found it.

    Attributes:
        bug: What was planted, in words.
        is_flagged: Whether the check called it a mismatch.
    """

    bug: str
    is_flagged: bool


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Which one.
        status: What came out.
        error: The error closest to its limit, None where nothing was compared.
        limit: That limit.
        planted: The bugs that were planted.
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
    """The bugs that were not flagged, in words; empty if all were."""
    return "; ".join(bug.bug for bug in planted if not bug.is_flagged)
