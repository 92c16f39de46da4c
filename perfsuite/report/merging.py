"""The shards of one session as one run: one page, one set of verdicts, and what keeps them apart.

Verdicts are not corrected again: each shard knew the number of cells of all of them beforehand.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from perfsuite.report.runs import Run
from perfsuite.shards import Shard, ShardStamp

# More than anybody reads in a line; a strange file may be one of very many.
_MOST_NAMED = 16


def merge_shards(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs with the shards of each session as one of them, the newest last.

    Shards belong to one session where they agree on the commit, on their number, and on which cell
    is in which of them. Of a shard that is there twice the newest counts.
    """
    whole = [run for run in runs if run.shard is None]
    sessions: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.saved_at):
        if run.shard is not None:
            sessions[_session(run, run.shard)].append(run)
    merged = [one for parts in sessions.values() for one in _merge(parts)]
    incomplete = [one for one in merged if one.gaps]
    merged = [_with_strangers(one, incomplete) for one in merged]
    return tuple(sorted([*whole, *merged], key=lambda run: run.saved_at))


def _session(run: Run, shard: ShardStamp) -> tuple[object, ...]:
    """What all shards of a session have in common."""
    return run.commit, run.is_dirty, shard.num_shards, shard.num_cells, shard.partition


def _merge(parts: Sequence[Run]) -> Iterator[Run]:
    """Join the shards of a session, the newest of each, and then those that are left over."""
    while parts:
        newest = {_stamp(run).number: run for run in parts}
        rest = [run for run in parts if newest[_stamp(run).number] is not run]
        numbers = sorted({_stamp(run).number for run in rest})
        again = [_stamp(newest[number]).shard for number in numbers]
        # All of them again are another session at the same commit.
        is_doubled = 0 < len(again) < _stamp(parts[0]).num_shards
        remarks = [f"more than once, the newest counts: {_named(again)}"] if is_doubled else []
        yield _join(newest, remarks)
        parts = rest


def _join(parts: Mapping[int, Run], remarks: Sequence[str]) -> Run:
    runs = [parts[number] for number in sorted(parts)]
    last = max(runs, key=lambda run: run.saved_at)
    stamp = _stamp(last)
    times_there = Counter(row.name for run in runs for row in run.rows)
    missing = [
        Shard(number=number, num_shards=stamp.num_shards)
        for number in range(1, stamp.num_shards + 1)
        if number not in parts
    ]
    return dataclasses.replace(
        last,
        machine=" and ".join(dict.fromkeys(run.machine for run in runs if run.machine)) or None,
        accepted=frozenset().union(*(run.accepted for run in runs)),
        rows=tuple({row.name: row for run in runs for row in run.rows}.values()),
        missing=tuple(text for run in runs for text in run.missing),
        parts=tuple(runs),
        gaps=(f"missing: {_named(missing)}",) if missing else (),
        remarks=(
            f"verdicts are corrected over the {stamp.num_cells} cells under test in all "
            f"{stamp.num_shards} shards",
            *remarks,
            *_environments(runs),
            *(f"in more than one shard: {name}" for name, n in times_there.items() if n > 1),
            *_unmeasured(stamp.num_cells - len(times_there), missing),
        ),
    )


def _unmeasured(num_cells: int, missing: Sequence[Shard]) -> Iterator[str]:
    """Say so where all shards are there and not all cells: they failed, or were not exercised."""
    if num_cells > 0 and not missing:
        yield f"without a time: {num_cells} of the cells"


def _environments(runs: Sequence[Run]) -> Iterator[str]:
    """Say so where shards ran in different ones: a cell's history is that of its own."""
    shards: dict[str, list[Shard]] = defaultdict(list)
    for run in runs:
        shards[run.fingerprint or "an unknown one"].append(_stamp(run).shard)
    if len(shards) > 1:
        listed = ", ".join(f"{name} ({_named(there)})" for name, there in shards.items())
        yield f"the shards ran in {len(shards)} environments: {listed}"


def _with_strangers(run: Run, incomplete: Sequence[Run]) -> Run:
    """Say of a session with gaps which shards could have filled them, and why they did not."""
    if not run.gaps:
        return run
    strangers = [
        f"not merged: {part.path}, shard {_stamp(part).shard}, {_why_apart(part, run)}"
        for other in incomplete
        if other is not run
        for part in other.parts
    ]
    return dataclasses.replace(run, remarks=(*run.remarks, *strangers))


def _why_apart(part: Run, shown: Run) -> str:
    theirs, ours = _stamp(part), _stamp(shown)
    if (part.commit, part.is_dirty) != (shown.commit, shown.is_dirty):
        return f"is of {_commit(part)} and not of {_commit(shown)}"
    if theirs.num_shards != ours.num_shards:
        return f"is one of {theirs.num_shards} shards and not of {ours.num_shards}"
    if theirs.num_cells != ours.num_cells:
        return f"was cut from {theirs.num_cells} cells and not from {ours.num_cells}"
    if theirs.partition != ours.partition:
        return "was cut by other durations, or from other cells"
    return f"is older than {shown.path}"


def _commit(run: Run) -> str:
    name = "no commit" if run.commit is None else f"commit {run.commit}"
    return f"{name} with uncommitted changes" if run.is_dirty else name


def _stamp(run: Run) -> ShardStamp:
    assert run.shard is not None
    return run.shard


def _named(shards: Sequence[Shard]) -> str:
    if len(shards) > _MOST_NAMED:
        return f"{len(shards)} shards, {shards[0]} the first"
    *first, last = map(str, shards)
    return f"shards {', '.join(first)} and {last}" if first else f"shard {last}"
