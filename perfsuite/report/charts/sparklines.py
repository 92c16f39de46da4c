"""Small pictures of one cell, light enough for thousands on a page."""

import math

from perfsuite.records.verdict import Verdict
from perfsuite.report.charts.sections import Picture
from perfsuite.report.rows import Row
from perfsuite.units import format_change, format_ratio, format_seconds, short_commit

_WIDTH = 120.0
# The gauge shows changes up to so many limits either way; a larger one lies on its border.
_LIMITS_SHOWN = 2.0
_STYLES = {"PASS": "v-good", "IMPROVED": "v-good", "FAIL": "v-bad"}


def draw_rounds(row: Row) -> Picture | None:
    """Return a mark for each round between the fastest and the slowest, and the median's."""
    if len(row.rounds_s) < 2 or row.step_time_s is None:
        return None
    low_s, high_s = min(row.rounds_s), max(row.rounds_s)

    def position(seconds: float) -> str:
        fraction = (seconds - low_s) / (high_s - low_s) if high_s > low_s else 0.5
        return _short(1 + fraction * (_WIDTH - 2))

    ends = f"{format_seconds(low_s)} to {format_seconds(high_s)}"
    label = f"{len(row.rounds_s)} rounds from {ends}, median {format_seconds(row.step_time_s)}"
    marks = "".join(f"M{position(seconds)} 3v8" for seconds in row.rounds_s)
    return _small(label, ("r", marks), ("m", f"M{position(row.step_time_s)} 0v14"))


def draw_stages(row: Row) -> Picture | None:
    """Return one bar of all stages, each as wide as its part of the iteration."""
    stages = row.stages_s
    if (total_s := sum(stages.values())) == 0:
        return None
    paths, x = [], 0.0
    for name, seconds in stages.items():
        width = _WIDTH * seconds / total_s
        paths.append((f"g-{name}", f"M{_short(x)} 1h{_short(width)}v12h-{_short(width)}z"))
        x += width
    return _small(", ".join(f"{n} {format_ratio(s / total_s)}" for n, s in stages.items()), *paths)


def draw_verdict(verdict: Verdict | None, tolerance: float, limit: float) -> Picture | None:
    """Return the interval of a verdict against no change, and its tolerance and limit, or these."""
    if verdict is None or verdict.interval is None or verdict.ratio is None:
        return None
    tolerance = tolerance if verdict.tolerance is None else verdict.tolerance
    limit = limit if verdict.limit is None else verdict.limit
    span = _LIMITS_SHOWN * limit

    def position(ratio: float) -> float:
        part = (ratio - 1) / span if span > 0 else math.copysign(1.0, ratio - 1)
        return _WIDTH / 2 * (1 + min(max(part, -1.0), 1.0))

    lower, upper = map(position, verdict.interval)
    width = _short(max(upper - lower, 1.0))
    between = " and ".join(map(format_change, verdict.interval))
    bounds = f"tolerance {format_change(1 + tolerance)}, limit {format_change(1 + limit)}"
    return _small(
        f"{format_change(verdict.ratio)}, between {between}; {bounds}",
        ("z", f"M{_short(_WIDTH / 2)} 0v14"),
        ("t", f"M{_short(position(1 + tolerance))} 0v14"),
        ("l", f"M{_short(position(1 + limit))} 0v14"),
        (_STYLES.get(verdict.word, "v-doubt"), f"M{_short(lower)} 4h{width}v6h-{width}z"),
        ("m", f"M{_short(position(verdict.ratio))} 2v10"),
    )


def draw_history(row: Row) -> Picture | None:
    """Return the step time of each run, from 0 up, and a line where a change was accepted."""
    history = row.history
    if len(history) < 2:
        return None
    slowest_s = max(point.step_time_s for point in history) or 1.0
    places, marks, times = [], "", []
    for number, point in enumerate(history):
        x = _short(1 + number * (_WIDTH - 2) / (len(history) - 1))
        places.append(f"{x} {_short(13 - 12 * point.step_time_s / slowest_s)}")
        marks += f"M{x} 0v14" if point.is_accepted else ""
        commit = short_commit(point.commit) if point.commit else "no commit"
        accepted = " (accepted change)" if point.is_accepted else ""
        times.append(f"{point.when} {commit} {format_seconds(point.step_time_s)}{accepted}")
    dots = "".join(f"M{place}h0" for place in places)
    paths = [("h", "M" + "L".join(places)), ("d", dots), *([("a", marks)] if marks else [])]
    return _small(f"{len(history)} runs: {', '.join(times)}", *paths)


def _small(label: str, *paths: tuple[str, str]) -> Picture:
    return Picture(label=label, width=_WIDTH, height=14.0, paths=paths)


def _short(length: float) -> str:
    """A length with at most one decimal, since a page holds a hundred thousand of them."""
    return f"{length:.1f}".removesuffix(".0")
