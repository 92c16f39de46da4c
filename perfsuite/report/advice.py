"""What the records advise, by stated rules: each finding with its evidence."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfsuite.report.families import Family, Member, RecipeField, families
from perfsuite.report.rows import Row
from perfsuite.units import format_bytes, format_change, format_ratio, format_seconds

# Below half of the iteration, making loading free could not double the speed.
_LOADING_BINDS = 0.5
# Two launches of one two-rank cell, pinned, on a shared two-core machine differed with a standard
# deviation of 6 %: twice that, and a margin. Rounds of one launch do not show it.
_LAUNCHES_DIFFER = 0.15
# Three standard errors: 0.3 % of equal cells would be called different.
_STANDARD_ERRORS = 3.0
# Standard error of a median over that of a mean, for normal data: sqrt(pi / 2).
_MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)
# A robust standard deviation over rounds beyond which a step time says little: with 10 rounds the
# standard error of its median is then above 4 %, near the gate's limit of 5 %.
_NOISY = 0.10
# The allocator's rounding moves peaks by less.
_MEMORY_MOVED = 0.02


class Advice(NamedTuple):
    """One finding, the numbers that it follows from, and the rule in words."""

    text: str
    evidence: str
    rule: str


def advise(rows: Sequence[Row]) -> tuple[Advice, ...]:
    """Return all that the rules find, in the order of the rules."""
    rules = (_slow_ranks, _loading, _scaling, _precision, _checkpointing, _noise)
    return tuple(advice for rule in rules for advice in rule(rows))


def is_slower(slow: Row, fast: Row, times_s: tuple[float, float] | None = None) -> bool:
    """Whether one cell takes longer than another, beyond noise; `times_s` are of equal work."""
    if slow.spread_ratio is None or fast.spread_ratio is None:  # with fewer than two rounds
        return False
    slow_s, fast_s = times_s or (slow.step_time_s or 0.0, fast.step_time_s or 0.0)
    errors = (
        time_s * _MEDIAN_OVER_MEAN * (row.spread_ratio or 0.0) / math.sqrt(len(row.rounds_s))
        for row, time_s in ((slow, slow_s), (fast, fast_s))
    )
    return slow_s - fast_s > max(_LAUNCHES_DIFFER * fast_s, _STANDARD_ERRORS * math.hypot(*errors))


def _slow_ranks(rows: Sequence[Row]) -> Iterator[Advice]:
    for row in rows:
        if row.slow_rank is not None:
            yield Advice(
                text=f"{row.subject}: {row.slow_rank}, and the step is as slow as it",
                evidence=f"the step takes {format_seconds(row.step_time_s or 0.0)}",
                rule="the longest time of a rank in a stage, less its own waiting for others, is "
                "above the median rank's by a tenth of the step, and by more than rounds differ",
            )


def _loading(rows: Sequence[Row]) -> Iterator[Advice]:
    for family in families(rows, "num_workers"):
        best = min(family.members, key=lambda member: member.step_time_s)
        for member in family.members:
            load_ratio, stages = member.row.load_ratio or 0.0, member.row.stages_s
            if load_ratio <= _LOADING_BINDS or not is_slower(member.row, best.row):
                continue
            compute_s = sum(stages.get(name, 0.0) for name in ("forward", "backward", "optimizer"))
            against = f": {stages['load'] / compute_s:.1f}x the compute" if compute_s else ""
            yield Advice(
                text=f"{family.name} with num_workers={member.value} is bound by loading{against}; "
                f"num_workers={best.value} wins here",
                evidence=f"loading is {format_ratio(load_ratio)} of the step; "
                f"{_step(member)}, {_step(best)}",
                rule=f"loading is over {_LOADING_BINDS:.0%} of the iteration, and another measured "
                "num_workers of the same recipe is faster beyond the noise",
            )


def _scaling(rows: Sequence[Row]) -> Iterator[Advice]:
    for family, member, alone in _against(rows, "parallel", 1):
        per_s, alone_per_s = member.record.samples_per_s, alone.record.samples_per_s
        if per_s and alone_per_s and is_slower(member.row, alone.row, (1 / per_s, 1 / alone_per_s)):
            yield Advice(
                text=f"{family.name} over {member.value} is slower than over 1 here",
                evidence=f"{per_s:.0f} samples/s over {member.value}, {alone_per_s:.0f} over 1, "
                f"an efficiency of {format_ratio(per_s / (member.value * alone_per_s))}",
                rule="more devices process fewer samples a second than one, beyond the noise",
            )


def _precision(rows: Sequence[Row]) -> Iterator[Advice]:
    for family, member, full in _against(rows, "precision", "fp32"):
        slower = is_slower(member.row, full.row)
        if member.value != "fp64" and (slower or is_slower(full.row, member.row)):
            yield Advice(
                text=f"{family.name}: {member.value} is {'slower' if slower else 'faster'} "
                f"than fp32 here{_memory_change(member, full)[1]}",
                evidence=_two_steps(member, full),
                rule="a lower precision is slower or faster than fp32, beyond the noise",
            )


def _checkpointing(rows: Sequence[Row]) -> Iterator[Advice]:
    for family, member, plain in _against(rows, "checkpointing", "none"):
        ratio, moved = _memory_change(member, plain)
        if moved and is_slower(member.row, plain.row):
            what = "trades time for memory" if ratio < 1 - _MEMORY_MOVED else "saves no memory here"
            yield Advice(
                text=f"{family.name}: checkpointing {member.value} {what}{moved}",
                evidence=_two_steps(member, plain),
                rule="checkpointing costs time beyond the noise; the peak memory is compared too",
            )


def _against(
    rows: Sequence[Row], field: RecipeField, reference: object
) -> Iterator[tuple[Family, Member, Member]]:
    for family in families(rows, field):
        for base in (member for member in family.members if member.value == reference):
            yield from ((family, member, base) for member in family.members if member is not base)


def _noise(rows: Sequence[Row]) -> Iterator[Advice]:
    if noisy := [(it, row.name) for row in rows if (it := row.spread_ratio or 0.0) > _NOISY]:
        widest, name = max(noisy)
        yield Advice(
            text=f"the rounds of {len(noisy)} of {len(rows)} cells are noisy; "
            "perfsuite doctor says what disturbs this machine",
            evidence=f"the widest spread is {format_ratio(widest)}, of {name}",
            rule=f"the rounds of a cell spread by over {_NOISY:.0%} of their median",
        )


def _memory_change(member: Member, base: Member) -> tuple[float, str]:
    mine, its = member.record.memory, base.record.memory
    if mine is None or its is None or mine.metric != its.metric or not its.peak_bytes:
        return 1.0, ""
    ratio = mine.peak_bytes / its.peak_bytes
    return ratio, f", with {format_change(ratio)} peak memory ({format_bytes(mine.peak_bytes)})"


def _two_steps(one: Member, base: Member) -> str:
    return f"{_step(one)}, {_step(base)} ({format_change(one.step_time_s / base.step_time_s)})"


def _step(member: Member) -> str:
    return f"{format_seconds(member.step_time_s)} a step with {member.value}"
