"""How a cell is judged where head and its base differ on that: by the stricter of the two.

A change may loosen what judges it only by a reviewed exception that it brings.
"""

from dataclasses import dataclass, replace
from typing import Final

from perfsuite.gate.baselines.accepted import Accepted, Loosening
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.units import format_ratio, format_seconds

# What an exception calls each field of a policy, and how people read it.
_BOUNDS: Final = (
    ("limit", "limit", format_ratio),
    ("tolerance", "tolerance", format_ratio),
    ("floor", "floor_s", format_seconds),
)


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The policy that holds.

    Attributes:
        loosened: The exceptions that let head's be looser than the base's.
        refused: What head loosens and no exception accepts, a clause each.
    """

    policy: CellPolicy
    loosened: tuple[Loosening, ...]
    refused: tuple[str, ...]


def rule(cell: str, head: CellPolicy, base: CellPolicy, accepted: Accepted) -> Ruling:
    """Return how the cell is judged; `cell` is head's name of it."""
    policy = replace(head, slacks=(*head.slacks, *base.slacks))
    loosened: list[Loosening] = []
    refused: list[str] = []
    for name, field, write in _BOUNDS:
        ours, theirs = getattr(head, field), getattr(base, field)
        if ours <= theirs:
            continue
        entry = max(accepted.loosenings(cell), key=lambda one: one.most(name), default=None)
        held = theirs
        if entry is not None and entry.most(name) > theirs:
            held = min(ours, entry.most(name))
            loosened.append(entry)
        if held < ours:
            refused.append(f"head's {name} of {write(ours)} is looser than {write(held)}")
        policy = replace(policy, **{field: held})
    if base.refuses_numerics_change and not head.refuses_numerics_change:
        refused.append(
            "head's perf_numerics_change of tell is looser than fail, where "
            "--perf-numerics-change=tell would hold for both sides"
        )
        policy = replace(policy, refuses_numerics_change=True)
    # Each bound may come from another side.
    policy = replace(policy, tolerance=min(policy.tolerance, policy.limit))
    return Ruling(policy=policy, loosened=tuple(dict.fromkeys(loosened)), refused=tuple(refused))
