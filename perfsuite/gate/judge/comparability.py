"""Whether both launches of a cell did the same work, as far as their records tell.

Must not know what becomes of the cell.
"""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from perfsuite.gate.arms.arm import CellRun
from perfsuite.records.cell import samples_of_step
from perfsuite.system.untrusted import Amount


class _Trained(msgspec.Struct, frozen=True):
    """What is read of a record; the base's perfsuite may keep other things beside it."""

    workload: str | None = None
    recipe: dict[str, Any] = {}
    samples_per_s: Amount | None = None


def why_incomparable(base: CellRun, head: CellRun) -> str | None:
    """Return why the times of two launches are of different things; None where none is known.

    A step over a quarter of the samples is faster, and needs less of everything, while training
    may have become slower.

    Args:
        base: Timed by the base arm.
        head: Timed by the head arm.
    """
    before, after = _samples_of(base), _samples_of(head)
    if before is None or after is None or before == after:
        return None
    return (
        f"a step has {before} samples in the base and {after} in head, so that neither times nor "
        "counts compare; give the test another name where that is meant"
    )


def describe_changes(base: CellRun, head: CellRun) -> str | None:
    """Return by which workload and fields of the recipe two launches differ; None if by none."""
    before, after = _read(base), _read(head)
    if before is None or after is None:
        return None
    ours = {"workload": after.workload, **after.recipe}
    theirs = {"workload": before.workload, **before.recipe}
    changed = [
        f"{name} {ours[name]!r} instead of {theirs[name]!r}"
        for name in ours.keys() & theirs.keys()
        if ours[name] != theirs[name]
    ]
    return f"head trains with {', '.join(sorted(changed))}" if changed else None


def _samples_of(run: CellRun) -> int | None:
    record = _read(run)
    if record is None or not run.rounds_s:
        return None
    return samples_of_step(record.samples_per_s, statistics.median(run.rounds_s))


def _read(run: CellRun) -> _Trained | None:
    if run.record is None:
        return None
    try:
        return msgspec.convert(run.record, _Trained)
    except msgspec.ValidationError:
        return None  # of another form; `counted` tells
