"""Two recipes of one workload side by side: a table and a sentence."""

import math
from collections.abc import Callable, Iterator, Mapping

from perfsuite.records.cell import CellRecord, Counts, StageTimes
from perfsuite.records.equivalence import Numerics
from perfsuite.report.rows import NOT_AVAILABLE, T
from perfsuite.report.terminal.tables import text_table
from perfsuite.units import format_bytes, format_change, format_count, format_ratio, format_seconds

Both = Mapping[str, T]  # of the two recipes, by "a" and "b"


def comparison_table(
    names: Both[str], step_times_s: Both[float], num_samples: Both[int], records: Both[CellRecord]
) -> str:
    """Return the table of two records as text."""
    columns = [("", False), *((f"{side}: {names[side]}", True) for side in ("a", "b"))]
    rows = [
        (
            title,
            *(NOT_AVAILABLE if value is None else write(value) for value in (a, b)),
            "" if a is None or b is None or a <= 0 else format_change(b / a),
        )
        for title, a, b, write in _rows(step_times_s, num_samples, records)
        if (a, b) != (None, None)
    ]
    numerics = (_describe(records[side].numerics) for side in ("a", "b"))
    return text_table([*columns, ("b against a", True)], [*rows, ("numerics", *numerics, "")])


def comparison_sentence(word: str, ratio: float, interval: tuple[float, float]) -> str:
    """Return how b compares with a, in plain language."""
    low, high = interval
    if not math.isfinite(high):
        return "undecided: too few pairs to tell a from b; raise --max-pairs or --max-minutes"
    between = f"between {format_change(low)} and {format_change(high)}"
    if word == "same":
        margin = format_ratio(max(high - 1, 1 - low))
        return f"b is the same as a within {margin} ({format_change(ratio)}, {between})"
    found = f"{format_change(ratio)} time per sample in pairs, {between}"
    if word == "undecided":
        return f"undecided: b takes {found}; raise --max-pairs or --max-minutes"
    return f"b is {word} than a: {found}"


def _rows(
    step_times_s: Both[float], num_samples: Both[int], records: Both[CellRecord]
) -> Iterator[tuple[str, float | None, float | None, Callable[[float], str]]]:
    a, b = records["a"], records["b"]
    yield "time per step", step_times_s["a"], step_times_s["b"], format_seconds
    for stage in StageTimes.__struct_fields__:
        a_s, b_s = getattr(a.stages_s, stage), getattr(b.stages_s, stage)
        yield f"  {stage} (last pair)", a_s, b_s, format_seconds
    a_s, b_s = (step_times_s[side] / num_samples[side] for side in ("a", "b"))
    yield "time per sample", a_s, b_s, format_seconds
    a_bytes, b_bytes = (one.memory.peak_bytes if one.memory else None for one in (a, b))
    yield "peak memory", a_bytes, b_bytes, format_bytes
    for name in Counts.__struct_fields__:
        write = format_bytes if name.endswith("_bytes") else format_count
        yield name.replace("_", " "), getattr(a.counts, name), getattr(b.counts, name), write


def _describe(numerics: Numerics | None) -> str:
    if numerics is None:
        return NOT_AVAILABLE
    power = "" if numerics.power is None else f", power {numerics.power}"
    return f"{numerics.check} {numerics.status}{power}"
