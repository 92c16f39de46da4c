"""Gradient accumulation: k micro-batches in one step, alone and with deferred reduction."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe


@pytest.mark.perf(matrix="full")
@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("grad_accumulation_steps", [1, 4])
def test_accumulation(train_benchmark: Any, grad_accumulation_steps: int, parallel: str) -> None:
    outcome = train_benchmark(
        "lenet-digits",
        Recipe(
            micro_batch_size=32 // grad_accumulation_steps,
            grad_accumulation_steps=grad_accumulation_steps,
            clip_grad_norm=1.0,
            parallel=parallel,
        ),
    )

    assert outcome.losses_are_finite
