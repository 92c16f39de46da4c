"""The shards of one session as one run, with remarks on what keeps it from being whole."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from perfsuite.records.shard import ShardStamp
from perfsuite.report.runs import Run
from perfsuite.system.environment import difference

# More would not be read in a line; an untrusted file may be one of very many.
_MOST_NAMED = 16


def merge_shards(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs with the shards of each session as one of them, the newest last.

    Shards belong to one session where they agree on the commit, on their number, and on the cells
    of each. Of a shard that is there twice the newest counts, of a copy the first.
    """
    merged: list[Run] = []
    sessions: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in sorted(_without_copies(runs), key=lambda run: run.saved_at):
        if (stamp := run.shard) is None:
            merged.append(run)
        else:
            cut = stamp.num_shards, stamp.num_cells, stamp.partition
            sessions[run.commit, run.is_dirty, *cut].append(run)
    joined = [_join(parts) for parts in sessions.values()]
    incomplete = [one for one in joined if len(one.parts) < _stamp(one).num_shards]
    merged += [_with_unmerged(one, incomplete) if one in incomplete else one for one in joined]
    return tuple(sorted(merged, key=lambda run: run.saved_at))


def _without_copies(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield each run once, with a remark where several files hold it, or one was given twice."""
    files: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        times = tuple((row.name, row.rounds_s or row.step_time_s) for row in run.rows)
        files[run.saved_at, run.commit, run.shard, times].append(run)
    for first, *copies in files.values():
        if copies:
            paths = ", ".join(dict.fromkeys(str(run.path) for run in (first, *copies)))
            remark = f"given {1 + len(copies)} times, counted once: {paths}"
            first = dataclasses.replace(first, remarks=(*first.remarks, remark))
        yield first


def _join(parts: Sequence[Run]) -> Run:
    newest = {_stamp(run).number: run for run in parts}
    runs = [newest[number] for number in sorted(newest)]
    stamp = _stamp(parts[-1])
    num_times = Counter(_stamp(run).number for run in parts)
    again = [number for number in sorted(newest) if num_times[number] > 1]
    missing = [number for number in range(1, stamp.num_shards + 1) if number not in newest]
    num_shards_of = Counter(row.name for run in runs for row in run.rows)
    num_absent = stamp.num_cells - len(num_shards_of)
    gaps = [f"without a time or a verdict: {num_absent} of the cells"] if num_absent > 0 else []
    if missing:
        gaps = [f"missing: {_named(missing, stamp)}"]
    return dataclasses.replace(
        parts[-1],
        machine=" and ".join(dict.fromkeys(run.machine for run in runs if run.machine)) or None,
        accepted=frozenset().union(*(run.accepted for run in runs)),
        rows=tuple({row.name: row for run in runs for row in run.rows}.values()),
        num_failed=sum(run.num_failed for run in runs),
        missing=tuple(text for run in runs for text in run.missing),
        parts=tuple(runs),
        gaps=tuple(gaps),
        remarks=(
            f"verdicts are corrected over the {stamp.num_cells} cells under test in all "
            f"{stamp.num_shards} shards",
            *([f"more than once, the newest counts: {_named(again, stamp)}"] if again else []),
            *(text for run in runs for text in run.remarks),
            *_differences(runs),
            *(f"in more than one shard: {name}" for name, n in num_shards_of.items() if n > 1),
        ),
    )


def _differences(runs: Sequence[Run]) -> Iterator[str]:
    """What the shards may differ in, or do; they are merged all the same.

    The runners of one CI session may share a checkout that is dirty, or one without git.
    """
    if len(runs) > 1 and runs[0].commit is None:
        yield "no shard names its commit, so they may be of different code"
    elif len(runs) > 1 and runs[0].is_dirty:
        yield "the shards were made with uncommitted changes, so they may be of different code"
    numbers: dict[str, list[int]] = defaultdict(list)
    known = {name: one for run in runs if run.stamp for name, one in run.stamp.environments.items()}
    for run in runs:
        names = (one.fingerprint or "unknown" for one in (runs[0], run))
        differs = difference(*(known.get(name, name) for name in names))
        numbers[differs and f" ({differs})"].append(_stamp(run).number)
    if len(numbers) > 1:
        listed = "; ".join(_named(there, _stamp(runs[0])) + how for how, there in numbers.items())
        yield f"the shards ran in {len(numbers)} environments: {listed}"


def _with_unmerged(run: Run, incomplete: Sequence[Run]) -> Run:
    """Name the shards that could have filled the gaps of a session, and why they did not."""
    remarks = list(run.remarks)
    for part in (part for other in incomplete if other is not run for part in other.parts):
        is_same_code = (part.commit, part.is_dirty) == (run.commit, run.is_dirty)
        why = "other partition" if is_same_code else "other commit or changes"
        remarks.append(f"not merged: {part.path} ({why})")
    return dataclasses.replace(run, remarks=tuple(remarks))


def _stamp(run: Run) -> ShardStamp:
    assert run.shard is not None
    return run.shard


def _named(numbers: Sequence[int], stamp: ShardStamp) -> str:
    *first, last = (f"{number}/{stamp.num_shards}" for number in numbers)
    if len(numbers) > _MOST_NAMED:
        return f"{len(numbers)} shards, {first[0]} the first"
    return f"shards {', '.join(first)} and {last}" if first else f"shard {last}"
