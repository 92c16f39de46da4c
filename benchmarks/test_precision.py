"""Every precision, the Apex-like optimisation levels included, on the step and on the loss."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe


@pytest.mark.perf(matrix="full")
@pytest.mark.parametrize(
    "precision",
    ["fp64", "fp32", "tf32", "bf16", "amp-bf16", "amp-fp16", "O0", "O1", "O2", "O3"],
)
@pytest.mark.parametrize("workload", ["lenet-digits", "toy-mlp"])
def test_precision(train_benchmark: Any, workload: str, precision: str) -> None:
    outcome = train_benchmark(workload, Recipe(precision=precision))

    assert outcome.losses_are_finite
