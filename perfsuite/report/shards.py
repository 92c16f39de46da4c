"""The shards of one session as one run: one page, one set of verdicts, and what keeps them apart.

Verdicts are not corrected again: each shard knew the number of cells of all of them beforehand.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from perfsuite.records.shard import Shard, ShardStamp
from perfsuite.report.runs import Run
from perfsuite.units import short_commit

# More than anybody reads in a line; a strange file may be one of very many.
_MOST_NAMED = 16


def merge_shards(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs with the shards of each session as one of them, the newest last.

    Shards belong to one session where they agree on the commit, on their number, and on which cell
    is in which of them. Of a shard that is there twice the newest counts, of a copy the first.
    """
    runs = list(_without_copies(runs))
    whole = [run for run in runs if run.shard is None]
    sessions: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.saved_at):
        if run.shard is not None:
            sessions[_session(run, run.shard)].append(run)
    merged = [one for parts in sessions.values() for one in _merge(parts)]
    incomplete = [one for one in merged if _lacks_shards(one)]
    merged = [_with_strangers(one, incomplete) for one in merged]
    return tuple(sorted([*whole, *merged], key=lambda run: run.saved_at))


def _without_copies(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield each run once, with a remark where several files hold it, or one was given twice."""
    files: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        times = tuple((row.name, row.step_time_s, row.rounds_s) for row in run.rows)
        number = None if run.shard is None else run.shard.number
        files[run.saved_at, run.commit, number, times].append(run)
    for first, *copies in files.values():
        if copies:
            paths = ", ".join(dict.fromkeys(str(run.path) for run in (first, *copies)))
            remark = f"given {1 + len(copies)} times, counted once: {paths}"
            first = dataclasses.replace(first, remarks=(*first.remarks, remark))
        yield first


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
        num_failed=sum(run.num_failed for run in runs),
        missing=tuple(text for run in runs for text in run.missing),
        parts=tuple(runs),
        gaps=tuple(_gaps(stamp.num_cells - len(times_there), missing)),
        remarks=(
            f"verdicts are corrected over the {stamp.num_cells} cells under test in all "
            f"{stamp.num_shards} shards",
            *remarks,
            *(text for run in runs for text in run.remarks),
            *_unknown_code(runs),
            *_environments(runs),
            *(f"in more than one shard: {name}" for name, n in times_there.items() if n > 1),
        ),
    )


def _gaps(num_untold: int, missing: Sequence[Shard]) -> Iterator[str]:
    """What is missing of the session: shards, else cells of which those that are there say nothing.

    Args:
        num_untold: Cells that were neither measured nor judged, such as those that failed in a
            session without a gate.
        missing: The shards that are not there.
    """
    if missing:
        yield f"missing: {_named(missing)}"
    elif num_untold > 0:
        yield f"without a time or a verdict: {num_untold} of the cells"


def _unknown_code(runs: Sequence[Run]) -> Iterator[str]:
    """Say so where nobody can know that the shards are of one code.

    They are merged all the same: the runners of one CI session may share a checkout that is dirty,
    or none of git.
    """
    if len(runs) == 1:
        return
    if runs[0].commit is None:
        yield "no shard says of which commit it is, so nobody knows that all are of one code"
    elif runs[0].is_dirty:
        yield (
            "the shards were made with uncommitted changes, so nobody knows that all are of one "
            "code"
        )


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
    if not _lacks_shards(run):
        return run
    strangers = [
        f"not merged: {part.path}, shard {_stamp(part).shard}, {_why_apart(part, run)}"
        for other in incomplete
        if other is not run
        for part in other.parts
    ]
    return dataclasses.replace(run, remarks=(*run.remarks, *strangers))


def _lacks_shards(run: Run) -> bool:
    return len(run.parts) < _stamp(run).num_shards


def _why_apart(part: Run, shown: Run) -> str:
    theirs, ours = _stamp(part), _stamp(shown)
    if (part.commit, part.is_dirty) != (shown.commit, shown.is_dirty):
        return f"is of {_commit(part, shown)} and not of {_commit(shown, part)}"
    if theirs.num_shards != ours.num_shards:
        return f"is one of {theirs.num_shards} shards and not of {ours.num_shards}"
    if theirs.num_cells != ours.num_cells:
        return f"was cut from {theirs.num_cells} cells and not from {ours.num_cells}"
    if theirs.partition != ours.partition:
        return "was cut by other durations, or from other cells"
    return f"is older than {shown.path}"


def _commit(run: Run, other: Run) -> str:
    """The commit of a run, in all digits where the first do not tell it from the other's."""
    if run.commit is None:
        name = "no commit"
    else:
        short = short_commit(run.commit)
        is_alike = run.commit != other.commit and short_commit(other.commit or "") == short
        name = f"commit {run.commit if is_alike else short}"
    return f"{name} with uncommitted changes" if run.is_dirty else name


def _stamp(run: Run) -> ShardStamp:
    assert run.shard is not None
    return run.shard


def _named(shards: Sequence[Shard]) -> str:
    if len(shards) > _MOST_NAMED:
        return f"{len(shards)} shards, {shards[0]} the first"
    *first, last = map(str, shards)
    return f"shards {', '.join(first)} and {last}" if first else f"shard {last}"
