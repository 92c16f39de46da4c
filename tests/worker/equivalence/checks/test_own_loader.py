"""What the check of the data says of a loader of the user's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfsuite import Recipe
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.worker.equivalence.checks.data import check_data

UNKNOWN = (
    "build_loader gives batches without indices, so it cannot be proven that an epoch has each "
    "sample once, in a new order"
)


def batch(number: int) -> Any:
    return torch.full((4,), float(number)), torch.zeros(4)


def check(*shards: list[int]) -> EquivalenceRow:
    """The row about shards that saw these batches."""
    case: Any = SimpleNamespace(
        recipe=Recipe(parallel=f"ddp:{len(shards)}"),
        workload=SimpleNamespace(build_loader=print, micro_batch_size=4),
        trace=SimpleNamespace(batches=[list(map(batch, numbers)) for numbers in shards]),
    )
    return check_data(case)


def test_shards_of_their_own_are_all_that_can_be_known() -> None:
    row = check([1, 2, 3], [4, 5, 6])

    assert (row.check, row.status, row.power) == ("data", "not exercised", "1/1")
    assert row.reason == f"the first 3 batches of 2 shards are all different; {UNKNOWN}"


@pytest.mark.parametrize(("seen", "number"), [([1, 2, 3], 1), ([4, 5, 2], 3)])
def test_a_batch_that_two_shards_saw_is_a_mismatch(seen: list[int], number: int) -> None:
    row = check([1, 2, 3], seen)

    assert (row.status, row.error, row.limit) == ("mismatch", 4.0, 0.0)
    assert row.reason == (
        f"batch {number} of shard 1 is one of shard 0's; likeliest cause: build_loader does not "
        "use shard_index, as by a DistributedSampler with num_replicas=num_shards, rank=shard_index"
    )


def test_one_shard_and_made_up_data_prove_nothing() -> None:
    alone, alike = check([1, 2]), check([1, 1], [1, 1])

    assert (alone.status, alone.reason) == ("not exercised", UNKNOWN)
    assert alike.status == "not exercised"
    assert alike.reason == (
        f"{UNKNOWN}; batches of one shard are alike, so two shards may share some"
    )
