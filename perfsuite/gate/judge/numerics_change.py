"""What changed in the mathematics: the first losses of head against those of the base.

The two launches of a pair have one seed and one hash seed, so the same training gives the same
losses, bit for bit, or within rounding where its sums have another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from perfsuite.gate.arms.arm import CellRun
from perfsuite.records.recipe import EPSILONS
from perfsuite.system.untrusted import Count

CHANGED: Final = "changed"
UNKNOWN: Final = "cannot be told"
# Of u sqrt(ws A), as for T1: what correct computations of one step may differ by.
_FACTOR = 16
# Optimizer steps multiply a difference in rounding; T0 to T2 are held to as many.
_NUM_STEPS = 3
_DIGITS = 4


class _Trained(msgspec.Struct, frozen=True):
    """What is read of a record; the base's perfsuite may keep other things beside it."""

    losses: tuple[float, ...] = ()
    recipe: dict[str, Any] | None = None
    world_size: Count = 1

    @property
    def rounding(self) -> float:
        """By how much rounding alone may make losses differ, relatively."""
        recipe = self.recipe or {}
        # Losses of fp8 are those of amp-bf16 around its linear layers; 16 u of 2**-3 tells nothing.
        epsilon = min(EPSILONS[recipe.get("precision", "fp32")], EPSILONS["amp-bf16"])
        num_steps = recipe.get("grad_accumulation_steps", 1)
        return _FACTOR * epsilon * math.sqrt(self.world_size * num_steps)


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """The first difference between two sequences of losses; whether rounding explains it."""

    step: int
    before: str
    after: str
    is_rounding: bool


def describe_numerics_change(base: Sequence[CellRun], head: Sequence[CellRun]) -> str | None:
    """Return what changed in the mathematics of a cell, from its runs, pair by pair; None of none.

    "same bits", "rounding", "changed: loss at step 2 0.8137 -> 0.7885" or "cannot be told: …".
    """
    if not base or not head:
        return None
    try:
        theirs, ours = (
            [msgspec.convert(run.record or {}, _Trained) for run in runs] for runs in (base, head)
        )
        limit = max(one.rounding for one in (*theirs, *ours))
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        return f"{UNKNOWN}: a record has another form: {error}"
    silent = [
        arm
        for arm, runs in (("the base", theirs), ("head", ours))
        if not all(one.losses for one in runs)
    ]
    if silent:
        return f"{UNKNOWN}: no loss of {' and '.join(silent)} is known"
    within = [
        _compare(before.losses, after.losses, limit)
        for before, after in zip(theirs, ours, strict=False)
    ]
    if not any(within):
        return "same bits"
    if (found := _beyond_rounding(within)) is None:
        return "rounding"
    among = _beyond_rounding([_compare(theirs[0].losses, one.losses, limit) for one in theirs])
    if among is not None:
        return (
            f"{UNKNOWN}: launches of the base differ among themselves, at step {among.step} by a "
            f"loss of {among.before} and {among.after}; seed what it draws"
        )
    if len(theirs) < 2:
        return f"{UNKNOWN}: one launch of the base does not show that the next has the same losses"
    return f"{CHANGED}: loss at step {found.step} {found.before} -> {found.after}"


def _beyond_rounding(differences: Sequence[_Difference | None]) -> _Difference | None:
    return next((one for one in differences if one is not None and not one.is_rounding), None)


def _compare(before: Sequence[float], after: Sequence[float], limit: float) -> _Difference | None:
    """Return the first loss that is not rounded alike, else the first whose bits differ.

    Beyond the steps after the first such difference, rounding has grown with the training.
    """
    steps = [(old, new) for old, new in zip(before, after, strict=False)]
    differing = [number for number, (old, new) in enumerate(steps) if repr(old) != repr(new)]
    if not differing:
        return None
    held = [number for number in differing if number < differing[0] + _NUM_STEPS]
    beyond = [number for number in held if not _is_rounding(*steps[number], limit)]
    number = (beyond or held)[0]
    texts = _write(*steps[number])
    return _Difference(step=number + 1, before=texts[0], after=texts[1], is_rounding=not beyond)


def _is_rounding(before: float, after: float, limit: float) -> bool:
    return abs(after - before) <= limit * max(abs(before), abs(after))


def _write(before: float, after: float) -> tuple[str, str]:
    """Both with so many digits that they differ.

    >>> _write(0.81372, 0.7885), _write(0.5, 0.50000001)
    (('0.8137', '0.7885'), ('0.5', '0.50000001'))
    """
    for digits in range(_DIGITS, 17):
        if (texts := (f"{before:.{digits}g}", f"{after:.{digits}g}"))[0] != texts[1]:
            return texts
    return repr(before), repr(after)
