"""What can be known of the data of a loader of the user's own: that ranks do not see the same.

Which samples it has, and in which order it should give them, it alone knows.
"""

from collections.abc import Sequence
from typing import Any

from perfsuite.records.equivalence import EquivalenceRow, NumericsStatus
from perfsuite.worker.equivalence.planted_bugs import missed
from perfsuite.worker.equivalence.proof import Case
from perfsuite.worker.equivalence.trace.batch_difference import find_differences


def check_own_loader(case: Case) -> EquivalenceRow:
    """Return whether each shard saw batches of its own; the rest is not exercised."""
    seen, size = case.trace.batches, case.workload.micro_batch_size
    unknown = (
        "build_loader gives batches without indices, so it cannot be proven that an epoch has each "
        "sample once, in a new order"
    )
    if len(seen) == 1 or _has_twins(seen[0], size):
        if len(seen) > 1:
            unknown += "; batches of one shard are alike, so two shards may share some"
        return EquivalenceRow.of(case.recipe, "data", "not exercised", unknown)
    shared = _find_shared(seen, size)
    if shared is not None:
        shard, other, number = shared
        reason = (
            f"batch {number + 1} of shard {other} is one of shard {shard}'s; likeliest cause: "
            "build_loader does not use shard_index, as by a DistributedSampler with "
            "num_replicas=num_shards, rank=shard_index"
        )
        return EquivalenceRow.of(
            case.recipe, "data", "mismatch", reason, error=float(size), limit=0.0
        )
    planted = {"a rank that sees another shard": _find_shared([seen[0], seen[0]], size) is not None}
    status: NumericsStatus = "no power" if missed(planted) else "not exercised"
    reason = f"the first {len(seen[0])} batches of {len(seen)} shards are all different; {unknown}"
    return EquivalenceRow.of(case.recipe, "data", status, reason, planted=planted)


def _find_shared(seen: Sequence[Sequence[Any]], size: int) -> tuple[int, int, int] | None:
    """Two shards that saw one batch, and its place in the second."""
    for other, theirs in enumerate(seen):
        for shard, batches in enumerate(seen[:other]):
            for number, batch in enumerate(theirs):
                if any(not find_differences([batch], [one], size) for one in batches):
                    return shard, other, number
    return None


def _has_twins(batches: Sequence[Any], size: int) -> bool:
    """Whether a shard's own batches are alike, as made-up data are: two shards' may be, too."""
    first, *others = batches
    return any(not find_differences([first], [one], size) for one in others)
