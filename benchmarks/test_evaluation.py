"""Evaluating the test split."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param("lenet-digits", marks=pytest.mark.perf(matrix="default")),
        pytest.param("transformer-tiny", marks=pytest.mark.perf(matrix="full")),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_evaluation(evaluation_benchmark: Any, workload: str, precision: str) -> None:
    outcome = evaluation_benchmark(workload, Recipe(precision=precision))

    assert outcome.record.stages_s.evaluation > 0
