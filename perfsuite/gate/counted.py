"""Counts and peak memory of both launches of a cell, through the exact gates.

Must not know what becomes of the cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from perfsuite.gate.arms import CellRun
from perfsuite.gate.exact import CountComparison, Slack, compare_counts
from perfsuite.records import Counts, Memory


class _CountedRecord(msgspec.Struct, frozen=True):
    """What is compared of a record; the base's perfsuite may keep other things beside it."""

    fingerprint: str | None = None
    counts: Counts | None = None
    memory: Memory | None = None


def compare_run_counts(
    base: CellRun,
    head: CellRun,
    *,
    slacks: Mapping[str, Slack | None],
    accepted_ratio: Callable[[str], float],
) -> CountComparison:
    """Return which counts of a cell differ between two launches; a plain benchmark has none.

    Args:
        base: Its launch of the base arm.
        head: Its launch of the head arm.
        slacks: In place of the usual ones, by name; None switches a count off.
        accepted_ratio: How many times the base's a reviewed exception lets a count be.
    """
    if base.record is None or head.record is None:
        return CountComparison(changes=(), unavailable=())
    try:
        before = msgspec.convert(base.record, _CountedRecord)
        after = msgspec.convert(head.record, _CountedRecord)
    except msgspec.ValidationError as error:
        reason = f"counts and memory are not compared: a record has another form: {error}"
        return CountComparison(changes=(), unavailable=(reason,))
    return compare_counts(before, after, slacks=slacks, accepted_ratio=accepted_ratio)
