"""Pictures as paths and texts, small enough for thousands on one page. Must not know any format.

Lengths are in the user units of a picture's own view box; y grows downwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfsuite.records.verdict import Verdict
from perfsuite.report.rows import Past, Row
from perfsuite.units import format_change, format_ratio, format_seconds, short_commit

_WIDTH: Final = 120.0
_HEIGHT: Final = 14.0
# The gauge shows changes up to so many limits either way; what is beyond lies on its border.
_LIMITS_SHOWN: Final = 2.0
_STYLES: Final = {"PASS": "v-good", "IMPROVED": "v-good", "FAIL": "v-bad"}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text in a picture.

    Attributes:
        x: Of its anchor.
        y: Of its base line.
    """

    x: float
    y: float
    anchor: Literal["start", "middle", "end"]
    content: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture.

    Attributes:
        label: What it shows, for those who cannot see it.
        paths: Style class and outline of each path, drawn in order.
        texts: Drawn last.
    """

    label: str
    width: float
    height: float
    paths: tuple[tuple[str, str], ...]
    texts: tuple[Text, ...] = ()


def draw_rounds(row: Row) -> Picture | None:
    """Return a mark for each round between the fastest and the slowest, and the median's."""
    if len(row.rounds_s) < 2 or row.step_time_s is None:
        return None
    low_s, high_s = min(row.rounds_s), max(row.rounds_s)
    marks = "".join(f"M{_between(low_s, high_s, s)} 3v8" for s in row.rounds_s)
    median = f"M{_between(low_s, high_s, row.step_time_s)} 0v14"
    label = (
        f"{len(row.rounds_s)} rounds from {format_seconds(low_s)} to {format_seconds(high_s)}, "
        f"median {format_seconds(row.step_time_s)}"
    )
    return _small(label, ("r", marks), ("m", median))


def draw_stages(row: Row) -> Picture | None:
    """Return one bar of all stages, each as wide as its part of the iteration."""
    stages = row.stages_s
    total_s = sum(stages.values())
    if total_s == 0:
        return None
    paths, x = [], 0.0
    for name, seconds in stages.items():
        width = _WIDTH * seconds / total_s
        paths.append((f"g-{name}", f"M{_short(x)} 1h{_short(width)}v12h-{_short(width)}z"))
        x += width
    shares = ", ".join(f"{name} {format_ratio(s / total_s)}" for name, s in stages.items())
    return _small(shares, *paths)


def draw_verdict(verdict: Verdict, tolerance: float, limit: float) -> Picture | None:
    """Return the interval of a verdict against no change, the tolerance and the limit.

    Args:
        verdict: What the gate decided. Its own tolerance and limit are drawn, where it has them.
        tolerance: The slowdown that is accepted, 0.02 = 2 %, where the verdict names none.
        limit: The slowdown that must not pass, likewise.
    """
    if verdict.interval is None or verdict.ratio is None:
        return None
    tolerance = tolerance if verdict.tolerance is None else verdict.tolerance
    limit = limit if verdict.limit is None else verdict.limit
    lower, upper = (_on_gauge(bound, limit) for bound in verdict.interval)
    width = max(upper - lower, 1.0)
    label = (
        f"{format_change(verdict.ratio)}, between "
        f"{' and '.join(map(format_change, verdict.interval))}; "
        f"tolerance {format_change(1 + tolerance)}, limit {format_change(1 + limit)}"
    )
    return _small(
        label,
        ("z", f"M{_short(_WIDTH / 2)} 0v14"),
        ("t", f"M{_short(_on_gauge(1 + tolerance, limit))} 0v14"),
        ("l", f"M{_short(_on_gauge(1 + limit, limit))} 0v14"),
        (
            _STYLES.get(verdict.word, "v-doubt"),
            f"M{_short(lower)} 4h{_short(width)}v6h-{_short(width)}z",
        ),
        ("m", f"M{_short(_on_gauge(verdict.ratio, limit))} 2v10"),
    )


def draw_history(history: Sequence[Past]) -> Picture | None:
    """Return the step time of each run, from 0 up, and a line where a change was accepted."""
    if len(history) < 2:
        return None
    slowest_s = max(past.step_time_s for past in history)
    step = (_WIDTH - 2) / (len(history) - 1)

    def point(place: int) -> str:
        part = history[place].step_time_s / slowest_s if slowest_s else 0.0
        return f"{_short(1 + place * step)} {_short(13 - 12 * part)}"

    line = "M" + "L".join(map(point, range(len(history))))
    dots = "".join(f"M{point(place)}h0" for place in range(len(history)))
    accepted = [place for place, past in enumerate(history) if past.is_accepted]
    marks = "".join(f"M{_short(1 + place * step)} 0v14" for place in accepted)
    times = ", ".join(
        f"{past.when} {short_commit(past.commit) if past.commit else 'no commit'} "
        f"{format_seconds(past.step_time_s)}"
        f"{' (accepted change)' if past.is_accepted else ''}"
        for past in history
    )
    paths = [("h", line), ("d", dots), *([("a", marks)] if marks else [])]
    return _small(f"{len(history)} runs: {times}", *paths)


def _small(label: str, *paths: tuple[str, str]) -> Picture:
    return Picture(label=label, width=_WIDTH, height=_HEIGHT, paths=paths)


def _between(low: float, high: float, value: float) -> str:
    part = (value - low) / (high - low) if high > low else 0.5
    return _short(1 + part * (_WIDTH - 2))


def _on_gauge(ratio: float, limit: float) -> float:
    span = _LIMITS_SHOWN * limit
    part = (ratio - 1) / span if span > 0 else math.copysign(1.0, ratio - 1)
    return _WIDTH / 2 * (1 + min(max(part, -1.0), 1.0))


def _short(length: float) -> str:
    """A length with at most one decimal, since a page holds a hundred thousand of them."""
    return f"{length:.1f}".removesuffix(".0")
