"""Loading alone: the sweep over workers, and what the random affine augmentation costs."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe

in_default = pytest.mark.perf(matrix="default")
in_full = pytest.mark.perf(matrix="full")


@pytest.mark.parametrize(
    "num_workers",
    [
        0,
        pytest.param(1, marks=in_full),
        pytest.param(2, marks=in_default),
        *(pytest.param(count, marks=in_full) for count in range(3, 11)),
    ],
)
def test_worker_sweep(loader_benchmark: Any, num_workers: int) -> None:
    outcome = loader_benchmark(
        "lenet-digits-affine", Recipe(num_workers=num_workers, persistent_workers=num_workers > 0)
    )

    assert outcome.record.stages_s.load > 0


@in_full
@pytest.mark.parametrize("workload", ["lenet-digits", "lenet-digits-affine"])
def test_augmentation(loader_benchmark: Any, workload: str) -> None:
    outcome = loader_benchmark(workload, Recipe())

    assert outcome.record.stages_s.load > 0
