"""Which slowdowns of a cell somebody accepted: reviewed exceptions, each in its time and only once.

An exception excuses what became slower before it expired, and together no more than it allows. Must
not know how changes are found, nor how they are told.
"""

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
class Excuses:
    """Why the slowdowns of a cell were accepted; None of what nobody has accepted.

    Attributes:
        steps: Of each step of the course.
        drift: Of its drift.
    """

    steps: tuple[str | None, ...]
    drift: str | None


@dataclass(kw_only=True)
class _Allowance:
    """An exception, and what of it is spent.

    Attributes:
        first_level: Number of the level before the first step that it excuses; None before that.
        spent: The most by which one level that it excuses is above another, 1.08 = 8 %.
    """

    entry: Slowdown
    first_level: int | None = None
    spent: float = 1.0

    def is_in_force(self, day: date) -> bool:
        """Whether it had not expired."""
        return day <= self.entry.expires

    def take(self, trend: Trend, level: int) -> bool:
        """Whether it excuses the step to a level beside what it excuses already; it does from then.

        Of how far that is above the lowest level from which this one rose, the lower bound counts.
        """
        first = level - 1 if self.first_level is None else self.first_level
        risen = max(trend.compare(before, level)[1] for before in range(first, level))
        if risen > self.entry.ratio:
            return False
        self.first_level, self.spent = first, max(self.spent, risen)
        return True


def find_excuses(timeline: Timeline, trend: Trend, accepted: Accepted) -> Excuses:
    """Return why each slowdown of a cell was accepted.

    Args:
        timeline: The cell's.
        trend: What became of its times.
        accepted: Exceptions, those that have expired among them: what was accepted once stays so.
    """
    names = names_of(timeline.cell, accepted)
    entries = [
        entry
        for entry in (*accepted.entries, *accepted.expired)
        if isinstance(entry, Slowdown) and entry.cell in names
    ]
    # What lasts longer, or allows more, is kept for what comes later, or is larger.
    allowances = [
        _Allowance(entry=entry)
        for entry in sorted(entries, key=lambda entry: (entry.expires, entry.ratio))
    ]
    ends = [*(step.place for step in trend.steps), len(timeline.points)]
    steps = tuple(
        _excuse_step(timeline, trend, allowances, level, range(start, end))
        if trend.steps[level - 1].ratio > 1
        else None
        for level, (start, end) in enumerate(pairwise(ends), start=1)
    )
    return Excuses(steps=steps, drift=_excuse_drift(timeline, trend, allowances))


def _excuse_step(
    timeline: Timeline,
    trend: Trend,
    allowances: list[_Allowance],
    level: int,
    places: range,
) -> str | None:
    """Why a step to a level was accepted, of which these are the places."""
    day = timeline.points[places.start].made_at.date()
    in_force = [allowance for allowance in allowances if allowance.is_in_force(day)]
    for allowance in in_force:
        if allowance.take(trend, level):
            return allowance.entry.reason
    # A gate asks for each change alone, so what is spent here may have let the next one through.
    if not in_force and any(timeline.points[place].is_excused for place in places):
        return _UNLISTED
    return None


def _excuse_drift(timeline: Timeline, trend: Trend, allowances: list[_Allowance]) -> str | None:
    """Why a creep was accepted, which goes on until the newest run."""
    drift = trend.drift
    if drift is None or drift.slope <= 0:
        return None
    weeks = timeline.weeks()
    least = as_ratio(drift.low * (max(weeks) - min(weeks)))
    day = timeline.points[-1].made_at.date()
    return next(
        (
            allowance.entry.reason
            for allowance in allowances
            if allowance.is_in_force(day) and allowance.spent * least <= allowance.entry.ratio
        ),
        None,
    )
