"""Which slowdowns of a cell were accepted: by exceptions in force on the day, and large enough."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Final

from perfsuite.gate.baselines.accepted import Accepted, Slowdown
from perfsuite.gate.history.timeline import Timeline, names_of
from perfsuite.stats.trend import Trend, as_ratio

_UNLISTED: Final = "by an exception that is no longer listed"


@dataclass(frozen=True, kw_only=True)
class Reasons:
    """Why the slowdowns of a cell were accepted: of each step, and of the drift; None if not."""

    steps: tuple[str | None, ...]
    drift: str | None


def find_reasons(timeline: Timeline, trend: Trend, accepted: Accepted) -> Reasons:
    """Return why each slowdown of a cell was accepted, by expired exceptions too.

    An exception accepts a slowdown that began by the day it expired, where the lower bound of the
    slowdown is within its ratio. A drift goes on until the newest run.
    """
    names = names_of(timeline.cell, accepted)
    entries = [
        entry
        for entry in (*accepted.entries, *accepted.expired)
        if isinstance(entry, Slowdown) and entry.cell in names
    ]
    # Of several, the one that fits most closely gives the reason.
    entries.sort(key=lambda entry: (entry.expires, entry.ratio))
    ends = [*(step.place for step in trend.steps), len(timeline.points)]
    steps: list[str | None] = []
    for step, (start, end) in zip(trend.steps, pairwise(ends), strict=True):
        day = timeline.points[start].made_at.date()
        reason = _reason(entries, day, step.low) if step.ratio > 1 else None
        is_in_force = any(day <= entry.expires for entry in entries)
        if step.ratio > 1 and not is_in_force:
            # A gate let a run through by an exception that was removed since.
            was_accepted = any(point.is_accepted for point in timeline.points[start:end])
            reason = _UNLISTED if was_accepted else None
        steps.append(reason)
    drift = None
    if trend.drift is not None and trend.drift.slope > 0:
        weeks = timeline.weeks()
        least = as_ratio(trend.drift.low * (max(weeks) - min(weeks)))
        drift = _reason(entries, timeline.points[-1].made_at.date(), least)
    return Reasons(steps=tuple(steps), drift=drift)


def _reason(entries: list[Slowdown], day: date, least_ratio: float) -> str | None:
    return next(
        (one.reason for one in entries if day <= one.expires and least_ratio <= one.ratio), None
    )
