"""The training step over all four axes: loader workers, parallel mode, precision, checkpointing.

A cell belongs to the smallest matrix that all of its values belong to (`--perf-matrix`).
"""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe

in_default = pytest.mark.perf(matrix="default")
in_full = pytest.mark.perf(matrix="full")


@pytest.mark.parametrize("checkpointing", ["none", pytest.param("every-block", marks=in_default)])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", pytest.param("amp-fp16", marks=in_full)])
@pytest.mark.parametrize("parallel", ["single", "ddp:2", pytest.param("fsdp:2", marks=in_full)])
@pytest.mark.parametrize(
    "num_workers", [0, pytest.param(2, marks=in_default), pytest.param(4, marks=in_full)]
)
def test_lenet_digits(
    train_benchmark: Any, num_workers: int, parallel: str, precision: str, checkpointing: str
) -> None:
    outcome = train_benchmark(
        "lenet-digits",
        Recipe(
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            parallel=parallel,
            precision=precision,
            checkpointing=checkpointing,
        ),
    )

    assert outcome.losses_are_finite


@pytest.mark.parametrize("checkpointing", ["none", "every-block"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("amp-bf16", marks=in_default)])
@pytest.mark.parametrize(
    "parallel",
    [
        "single",
        pytest.param("ddp:2", marks=in_default),
        pytest.param("fsdp:2", marks=in_full),
    ],
)
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=in_full)])
def test_transformer_tiny(
    train_benchmark: Any, num_workers: int, parallel: str, precision: str, checkpointing: str
) -> None:
    outcome = train_benchmark(
        "transformer-tiny",
        Recipe(
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            parallel=parallel,
            precision=precision,
            checkpointing=checkpointing,
        ),
    )

    assert outcome.losses_are_finite


@in_full
@pytest.mark.parametrize("workload", ["toy-mlp", "transformer-tiny-lora", "resnet18"])
def test_other_workloads(train_benchmark: Any, workload: str) -> None:
    outcome = train_benchmark(workload, Recipe())

    assert outcome.losses_are_finite
