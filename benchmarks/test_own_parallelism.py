"""How fast models are that their user parallelizes over a DeviceMesh (`own_parallelism.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe


@pytest.mark.perf(matrix="full")
@pytest.mark.parametrize(
    ("workload", "parallel"),
    [("fsdp_tp", "mesh:fsdp=2,tp=2"), ("context_parallel", "mesh:dp=2,cp=2")],
)
def test_own_parallelism(train_benchmark: Any, workload: str, parallel: str) -> None:
    outcome = train_benchmark(f"benchmarks.own_parallelism:{workload}", Recipe(parallel=parallel))

    assert outcome.losses_are_finite
