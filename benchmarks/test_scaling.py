"""Weak and strong scaling of DDP: 8 samples a rank, and 8 samples over all ranks.

`perfsuite report` finds the series by their batches. Rounds of one launch are no independent
measurements, so each cell is launched three times, for its interval. What the sums over ranks cost
by themselves is in test_all_reduce.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe

BATCH_SIZE = 8

pytestmark = pytest.mark.perf(matrix="full")


@pytest.mark.parametrize("launch", [1, 2, 3])
@pytest.mark.parametrize("parallel", ["single", "ddp:1", "ddp:2", "ddp:4"])
def test_weak_scaling(train_benchmark: Any, parallel: str, launch: int) -> None:
    outcome = train_benchmark(
        "transformer-tiny", Recipe(parallel=parallel, micro_batch_size=BATCH_SIZE)
    )

    assert outcome.losses_are_finite


# One process has the same batch in both.
@pytest.mark.parametrize("launch", [1, 2, 3])
@pytest.mark.parametrize("world_size", [2, 4])
def test_strong_scaling(train_benchmark: Any, world_size: int, launch: int) -> None:
    recipe = Recipe(parallel=f"ddp:{world_size}", micro_batch_size=BATCH_SIZE // world_size)

    outcome = train_benchmark("transformer-tiny", recipe)

    assert outcome.losses_are_finite
