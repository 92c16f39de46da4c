"""How long tests took according to stored runs: every runner has to find the same for shards."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfsuite.gate.baselines.select import find_runs
from perfsuite.records.run_file import Unusable, read_head
from perfsuite.system.urls import AnyPath

# No run has a new cell, and it is not worth a search through all of them.
_MOST_RUNS: Final = 100


@dataclass(frozen=True, kw_only=True)
class Durations:
    """The known durations of tests, None for a test that no run has."""

    seconds: dict[str, float | None]
    refused: tuple[Unusable, ...]

    @property
    def num_known(self) -> int:
        """Tests with a known duration."""
        return sum(seconds is not None for seconds in self.seconds.values())


def read_durations(
    source: AnyPath | None, names: Collection[str], *, but_of: str | None
) -> Durations:
    """Return how long tests took the last time that they were measured, on any machine.

    `source` is a folder of stored runs, a StorageError where it cannot be listed, or one of them.
    Runs of the commit `but_of` do not count.
    """
    seconds: dict[str, float | None] = dict.fromkeys(names)
    unknown, refused = set(seconds), []
    newest_first: list[AnyPath] = []
    if source is not None:
        is_run = not source.is_dir() if isinstance(source, Path) else source.name.endswith(".json")
        newest_first = [source] if is_run else find_runs(source)[::-1]
    for path in newest_first[:_MOST_RUNS]:
        if not unknown:
            break
        head = read_head(path)
        if isinstance(head, Unusable):
            refused.append(head)
        elif head.stamp is not None and (but_of is None or head.commit != but_of):
            found = unknown & head.stamp.durations_s.keys()
            seconds |= {name: head.stamp.durations_s[name] for name in found}
            unknown -= found
    return Durations(seconds=seconds, refused=tuple(refused))
