"""The gates that need no statistics: counts and peak memory against those of the base.

An increase beyond the slack of its counter fails, and must stand in every launch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from perfsuite.errors import SettingError
from perfsuite.gate.arms.arm import CellRun
from perfsuite.records.cell import COUNT_NAMES, Counts, Memory
from perfsuite.records.run_file import StoredCell
from perfsuite.system.environment import difference
from perfsuite.units import format_bytes, format_count, format_ratio, parse_ratio


class _CountedRecord(msgspec.Struct, frozen=True):
    counts: Counts | None = None
    memory: Memory | None = None


Counted = StoredCell | _CountedRecord


class Slack(NamedTuple):
    """How much more a count may be though no code changed: a part of the base's, or some bytes."""

    ratio: float = 0.0
    num_bytes: int = 0

    def allowance(self, base: int) -> float:
        """Return by how much a count may differ from the base's."""
        return max(self.ratio * base, float(self.num_bytes))

    def __str__(self) -> str:
        parts = [format_ratio(self.ratio)] if self.ratio else []
        parts += [format_bytes(self.num_bytes)] if self.num_bytes else []
        return " or ".join(parts) or "0 %"


Slacks = Sequence[Mapping[str, Slack | None]]  # each by the name of a count
RatioOf = Callable[[str], float]  # of a count, by its name
EXACT = Slack()
# CUDA's allocator hands out a cached block up to 1 MiB larger than was asked for rather than split
# it (kSmallSize, c10/cuda/CUDACachingAllocator.cpp), so its peak moves with what was freed before:
# by sixteen such blocks, or by 1 % where there are thousands. What was asked for does not, unless
# another stream uses it, and then a rank reads the blocks.
_ALLOCATOR_SLACK = Slack(ratio=0.01, num_bytes=16 * 2**20)
# The live-storage peak repeats bit for bit: 14 cells on a CPU (one rank, DDP, FSDP, loader workers,
# checkpointing) in three sessions each. A page leaves room for another scalar, such as a counter.
_EXACT_PEAK_SLACK = Slack(num_bytes=4096)
_USUAL = {"kept_bytes": _EXACT_PEAK_SLACK}  # a few numbers of each step are no leak

_OF_MEMORY = ("saved_activation_bytes", "memory")
_SIZES = ("collective_bytes", "device_copy_bytes", "kept_bytes", *_OF_MEMORY)
_NOT_COMPARED = "counts and memory are not compared"
# From here on a change is visible in a percentage with one decimal.
_VISIBLE_RATIO = 0.0005
# Of launches of each side: by chance all of one lie above all of the other in one of 924 cells.
_LEAST_VARYING = 6


class CountChange(NamedTuple):
    """A count that changed, per iteration of the busiest rank; an exception may accept a ratio."""

    name: str
    base: int
    head: int
    slack: Slack
    accepted_ratio: float = 1.0
    is_recomputed: bool = False  # what it counts more of is computed a second time

    @property
    def kind(self) -> Literal["increase", "accepted", "decrease"] | None:
        """What it is beyond its slack; after a decrease the stored run hides a later increase."""
        if abs(self.head - self.base) <= self.slack.allowance(self.base):
            return None
        if self.head < self.base:
            return "decrease"
        is_within = math.isinf(self.accepted_ratio) or self.head <= self.accepted_ratio * self.base
        return "accepted" if is_within else "increase"

    def __str__(self) -> str:
        """One line."""
        write = format_bytes if self.name in _SIZES else format_count
        base, head = write(self.base), write(self.head)
        if base == head:
            unit = " B" if self.name in _SIZES else ""
            base, head = f"{self.base:,}{unit}", f"{self.head:,}{unit}"
        by = self.head - self.base
        is_visible = self.base > 0 and abs(by) >= _VISIBLE_RATIO * self.base
        change = f"{by / self.base * 100:+.1f} %" if is_visible else f"{by:+,}"
        allowed = f", allowed {self.slack}" if by > 0 else ""
        line = f"{self.name} {base} -> {head} ({change}){allowed}"
        if 1 < self.accepted_ratio < math.inf:
            line += f", accepted {format_ratio(self.accepted_ratio - 1)}"
        again = "; model_flops is as before: the backward pass computes more anew"
        return line + again * self.is_recomputed


class CountComparison(NamedTuple):
    """Every count that differs and is not switched off, and why others are not compared."""

    changes: tuple[CountChange, ...] = ()
    unavailable: tuple[str, ...] = ()
    varies: bool = False  # more launches are needed to compare one

    @property
    def increases(self) -> tuple[CountChange, ...]:
        """Those that fail the cell."""
        return tuple(change for change in self.changes if change.kind == "increase")

    @property
    def decreases(self) -> tuple[CountChange, ...]:
        """Those that ask for a new stored run."""
        return tuple(change for change in self.changes if change.kind == "decrease")


def parse_slacks(counts: Mapping[str, object]) -> dict[str, Slack | None]:
    """Return the slacks that a `perf` marker's `counts` names; None for a count switched off.

    Raises a SettingError for what is no count or has none of the three forms.
    """
    slacks: dict[str, Slack | None] = {}
    for name, value in counts.items():
        if name not in COUNT_NAMES:
            allowed = ", ".join(COUNT_NAMES)
            raise SettingError(f"counts names {name!r} (perf marker); use {allowed}")
        if value in ("exact", "off"):
            slacks[name] = EXACT if value == "exact" else None
            continue
        try:
            slacks[name] = Slack(ratio=parse_ratio(str(value)))
        except ValueError as error:
            advice = "use 'exact', 'off', or a ratio such as '2%'"
            raise SettingError(f"counts has {name} = {value!r} (perf marker); {advice}") from error
    return slacks


def differing_environments(base: StoredCell, head: StoredCell) -> str:
    """Return how the environments of two stored cells differ, "" where one tells none."""
    there, here = (cell.environment or cell.fingerprint for cell in (base, head))
    return difference(there, here) if there and here else ""


def compare_counts(
    base: StoredCell,
    head: StoredCell,
    *,
    slacks: Slacks = ({},),
    accepted_ratio: RatioOf = lambda name: 1.0,
) -> CountComparison:
    """Return which counts of a cell changed since a stored run, and which cannot be compared.

    `slacks` stand in place of the usual ones: None switches a count off, of several the strictest
    holds. `accepted_ratio` returns how many times the base's an exception lets a count be.
    """
    if differs := differing_environments(base, head):
        reason = f"{_NOT_COMPARED}: the base ran in another environment: {differs}"
        return CountComparison(unavailable=(reason,))
    return _compare((base,), (head,), slacks, accepted_ratio)


def _compare(
    bases: Sequence[Counted], heads: Sequence[Counted], slacks: Slacks, accepted_ratio: RatioOf
) -> CountComparison:
    changes: list[CountChange] = []
    unavailable: list[str] = []
    varies = False
    model = [{*_values(cells, "model_flops")} for cells in (bases, heads)]
    kinds = [None if one.memory is None else one.memory.metric for one in (bases[-1], heads[-1])]
    peak_slack = _ALLOCATOR_SLACK if "max_memory_allocated" in kinds else _EXACT_PEAK_SLACK
    for name in COUNT_NAMES:
        usual = peak_slack if name in _OF_MEMORY else _USUAL.get(name, EXACT)
        wanted = [slack for one in slacks if (slack := one.get(name, usual)) is not None]
        before, after = _values(bases, name), _values(heads, name)
        if not wanted or not (before or after):
            continue
        if not before or not after:
            where = "of head" if before else "of the base"
            unavailable.append(f"{name} is not available {where}, so it is not compared")
        elif name in _OF_MEMORY and None not in kinds and kinds[0] != kinds[1]:
            told = f"{kinds[0]} of the base, {kinds[1]} of head"
            unavailable.append(f"{name} is not compared: {told}")
        elif _vary(before, wanted):
            figures = f"{min(before)} to {max(before)} in {len(before)} launches of the base"
            unavailable.append(f"{name} is not compared: it is {figures}")
            varies = True
        elif (moved := _nearest(before, after)) is not None:
            base, head = moved
            ratio, slack = accepted_ratio(name), min(wanted, key=lambda one: one.allowance(base))
            again = name == "flops" and head > base and bool(model[0]) and model[0] == model[1]
            changes.append(CountChange(name, base, head, slack, ratio, is_recomputed=again))
    return CountComparison(changes=tuple(changes), unavailable=tuple(unavailable), varies=varies)


def _vary(counts: Sequence[int], slacks: Sequence[Slack]) -> bool:
    """Whether launches of one code differ so that of few all may lie on one side by chance."""
    spread, least = max(counts) - min(counts), min(counts)
    return len(counts) < _LEAST_VARYING and spread > min(one.allowance(least) for one in slacks)


def _nearest(before: Sequence[int], after: Sequence[int]) -> tuple[int, int] | None:
    """The counts of base and head that are nearest; None where their launches overlap."""
    if min(after) > max(before):
        return max(before), min(after)
    return (min(before), max(after)) if max(after) < min(before) else None


def _values(cells: Sequence[Counted], name: str) -> list[int]:
    parts = [cell.memory if name == "memory" else cell.counts for cell in cells]
    field = "peak_bytes" if name == "memory" else name
    return [value for part in parts if (value := getattr(part, field, None)) is not None]


def compare_run_counts(
    base: Sequence[CellRun], head: Sequence[CellRun], *, slacks: Slacks, accepted_ratio: RatioOf
) -> CountComparison:
    """Return which counts of a cell differ between all launches, whatever their environments."""
    try:
        before, after = (
            [msgspec.convert(run.record, _CountedRecord) for run in runs if run.record is not None]
            for runs in (base, head)
        )
    except msgspec.ValidationError as error:
        reason = f"{_NOT_COMPARED}: a record has another form: {error}"
        return CountComparison(unavailable=(reason,))
    if not before or not after:
        return CountComparison()
    return _compare(before, after, slacks, accepted_ratio)
