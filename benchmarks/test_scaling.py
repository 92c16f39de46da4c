"""Weak and strong scaling of DDP: 8 samples a rank, and 8 samples over all ranks.

`perfsuite report` finds the series by their batches. Rounds of one launch are no independent
measurements, so each cell is launched three times, for its interval: all of them, then all again,
so that what the machine does meanwhile happens to all. `ddp:1` is what the wrapper costs alone.
What the sums over ranks cost by themselves is in test_all_reduce.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe

BATCH_SIZE = 8


@pytest.mark.perf(matrix="full")
@pytest.mark.parametrize(
    ("parallel", "micro_batch_size"),
    [
        ("single", BATCH_SIZE),
        ("ddp:1", BATCH_SIZE),
        ("ddp:2", BATCH_SIZE),
        ("ddp:4", BATCH_SIZE),
        ("ddp:2", BATCH_SIZE // 2),
        ("ddp:4", BATCH_SIZE // 4),
    ],
)
# The last decorator is the outer loop.
@pytest.mark.parametrize("launch", [1, 2, 3])
def test_scaling(train_benchmark: Any, launch: int, parallel: str, micro_batch_size: int) -> None:
    outcome = train_benchmark(
        "transformer-tiny", Recipe(parallel=parallel, micro_batch_size=micro_batch_size)
    )

    assert outcome.losses_are_finite
