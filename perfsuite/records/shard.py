"""Which cells each of several runners measures, the same on all of them, and what its file says."""

import hashlib
import heapq
import json
import re
import statistics
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

from perfsuite.system.untrusted import Count, Label

# More than there are runners; an unknown file may hold any number.
_MAX_SHARDS = 99_999
# Short enough for `int`, which refuses thousands of digits.
_SHARD = re.compile(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")


class Shard(NamedTuple):
    """One of the parts of a session, `number` counted from 1; by default the whole."""

    number: int = 1
    num_shards: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether nothing is cut."""
        return self.num_shards == 1

    def __str__(self) -> str:
        return f"{self.number}/{self.num_shards}"


class ShardStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run's file says about the session that it is a part of.

    Attributes:
        num_cells: Under test in all shards together: their verdicts are corrected over so many.
        partition: Digits that are the same in two shards if and only if they were cut alike.
    """

    number: Annotated[int, msgspec.Meta(ge=1)]
    num_shards: Annotated[int, msgspec.Meta(ge=2, le=_MAX_SHARDS)]
    num_cells: Count
    partition: Label

    def __post_init__(self) -> None:
        if self.number > self.num_shards:
            raise ValueError(f"the shard is number {self.number} of {self.num_shards}")


def parse_shard(text: str) -> Shard:
    """Return the shard that a text such as "2/4" names; raises ValueError where it names none."""
    found = _SHARD.fullmatch(text)
    if found is None or not int(found[1]) <= int(found[2]) <= _MAX_SHARDS:
        raise ValueError(text)
    return Shard(number=int(found[1]), num_shards=int(found[2]))


def assign(durations_s: Mapping[str, float | None], num_shards: int) -> dict[str, int]:
    """Return the number of each cell's shard: the longest cell first, to the least loaded shard.

    The last shard then ends at most a third later than it could (Graham 1969, "Bounds on
    Multiprocessing Timing Anomalies"). Ties go by name, number of cells and number of the shard,
    so that the result depends on the arguments alone. None, unknown, counts as the median.
    """
    known = [seconds for seconds in durations_s.values() if seconds is not None]
    usual_s = statistics.median(known or [1.0])  # where none is known, all count alike
    filled = {name: usual_s if it_s is None else it_s for name, it_s in durations_s.items()}
    # At most as many shards as cells get any.
    shards = [(0.0, 0, number) for number in range(1, min(num_shards, len(filled)) + 1)]
    assigned = {}
    for name in sorted(filled, key=lambda name: (-filled[name], name)):
        total_s, num_cells, number = shards[0]
        heapq.heapreplace(shards, (total_s + filled[name], num_cells + 1, number))
        assigned[name] = number
    return assigned


def digest_of(assigned: Mapping[str, int]) -> str:
    """Return twelve hexadecimal digits that differ where any cell is in another shard."""
    canonical = json.dumps(sorted(assigned.items()))  # in ASCII, whatever a file is called
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
