"""A session that is one of several: which of the collected cells are its own.

The cut depends on the cells and on the runs that say how long they took, and on nothing else, so
that runners which agree on both measure each cell once.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.baselines.select import read_durations
from perfsuite.plugin.session.saving import STORAGE, commit_info
from perfsuite.records.shard import Shard, ShardStamp, assign, digest_of
from perfsuite.system.urls import AnyPath, locate
from perfsuite.units import counted, format_seconds


class Sharding(NamedTuple):
    """Which of a session's cells are its own, by node id; of a whole session it says no more."""

    shard: Shard = Shard()
    cells: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()  # those of the other shards
    stamp: ShardStamp | None = None  # in the session's files
    described: str | None = None  # one line for people

    @property
    def num_cells(self) -> int:
        """Cells under test in all shards."""
        return len(self.cells) + len(self.others)

    def owns(self, name: str) -> bool:
        """Whether this shard reports a cell; the first shard reports those that are in none."""
        return name in self.cells or (self.shard.number == 1 and name not in self.others)

    @property
    def why_empty(self) -> str | None:
        """Why there is nothing to measure here; None where there is, or nothing was cut."""
        if self.cells or self.shard.is_whole:
            return None
        if self.num_cells == 0:
            return f"shard {self.shard} is empty: no cell was collected"
        cells = f"{counted(self.num_cells, 'cell')} in {self.shard.num_shards} shards"
        most = counted(self.num_cells, "shard")
        return f"shard {self.shard} is empty: {cells}; use {most} or fewer"


# Options that let pytest choose tests by the runner's own cache.
_CHOSEN_BY_CACHE = {"lf": "--last-failed", "stepwise": "--stepwise"}


def refuse_own_choices(shard: Shard, options: Mapping[str, object]) -> None:
    """Raise a SettingError for options that choose other cells on each runner."""
    for name, flag in _CHOSEN_BY_CACHE.items():
        if options.get(name) and not shard.is_whole:
            raise SettingError(
                f"{flag} chooses by what failed on this runner, and shard {shard} is cut from the "
                "cells that all runners choose; leave out one of the two"
            )


def durations_place(config: pytest.Config, named: str | None) -> AnyPath | None:
    """Return what says how long cells took: what is named, else the stored runs; None without."""
    place = config.stash.get(STORAGE, None) if named is None else locate(named, "--perf-durations")
    return config.rootpath / place if isinstance(place, Path) else place


def cut(config: pytest.Config, names: Sequence[str], shard: Shard, named: str | None) -> Sharding:
    """Return which of the cells, by node id, are this shard's, by durations in a place if named."""
    if shard.is_whole:
        return Sharding(shard=shard, cells=frozenset(names))
    place = durations_place(config, named)
    source = _describe_place(place, config.rootpath)
    # Shards that end early store their runs while others have not begun.
    but_of = commit_info(config).get("id") if named is None else None
    durations_s, refused = read_durations(place, names, but_of=but_of)
    if named is not None and names and {*durations_s.values()} == {None}:
        why = f" ({refused[0].reason})" if refused else ""
        lacks = f"has no duration of any of the {counted(len(names), 'cell')}{why}"
        advice = "name a run that perfsuite wrote, such as results/run.json, or a folder of them"
        raise SettingError(f"--perf-durations is {source!r}, which {lacks}; {advice}")
    assigned = assign(durations_s, shard.num_shards)
    cells = frozenset(name for name, number in assigned.items() if number == shard.number)
    partition = digest_of(assigned)
    stamp = ShardStamp(**shard._asdict(), num_cells=len(assigned), partition=partition)
    others, described = frozenset(assigned) - cells, _describe(cells, stamp, durations_s, source)
    return Sharding(shard=shard, cells=cells, others=others, stamp=stamp, described=described)


def _describe_place(place: AnyPath | None, root: Path) -> str:
    if place is None:
        return "Elasticsearch"
    is_below = isinstance(place, Path) and place.is_relative_to(root)
    return os.path.relpath(str(place), root) if is_below else str(place)


def _describe(
    cells: frozenset[str], stamp: ShardStamp, durations_s: Mapping[str, float | None], source: str
) -> str:
    sums_s = (sum(durations_s[name] or 0 for name in names) for names in (cells, durations_s))
    own_s, all_s = map(format_seconds, sums_s)
    num_known = sum(seconds is not None for seconds in durations_s.values())
    part = f"{len(cells)} of {counted(stamp.num_cells, 'cell')}, partition {stamp.partition}"
    times = f"{own_s} of {all_s} by {num_known} known durations from {source}"
    return f"shard {stamp.number}/{stamp.num_shards}: {part}, {times}"
