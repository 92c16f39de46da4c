"""Memory against recomputation on a deep chain of equal blocks.

The workload is made here, as a user's would be: `train_benchmark` takes an object or a name.
"""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe, Workload

WIDTH = 64


def deep_chain(num_blocks: int) -> Workload:
    """Return a chain of equal two-layer blocks on random points, one output to regress."""
    # torch is imported where the ranks call it, so that collecting this file stays fast.

    def build_model() -> Any:
        from torch import nn

        def block() -> nn.Module:
            return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

        return nn.Sequential(*(block() for _ in range(num_blocks)), nn.Linear(WIDTH, 1))

    def build_dataset(split: str) -> Any:
        import torch
        from torch.utils.data import TensorDataset

        points = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(len(split)))
        return TensorDataset(points, points.sum(dim=1, keepdim=True))

    def loss(outputs: Any, targets: Any) -> Any:
        from torch.nn import functional

        return functional.mse_loss(outputs, targets)

    def build_optimizer(parameters: Any) -> Any:
        from torch.optim import SGD

        return SGD(parameters, lr=1e-3)

    return Workload(
        name=f"deep-chain-{num_blocks}",
        build_model=build_model,
        build_dataset=build_dataset,
        loss=loss,
        build_optimizer=build_optimizer,
        blocks=lambda model: list(model)[:-1],
        micro_batch_size=256,  # so that activations, not gradients, make the peak
        metric="none",
    )


@pytest.mark.perf(matrix="full")
@pytest.mark.parametrize("checkpointing", ["none", "every-block", "segments:4", "selective"])
@pytest.mark.parametrize("num_blocks", [4, 16, 32])
def test_deep_chain(train_benchmark: Any, num_blocks: int, checkpointing: str) -> None:
    outcome = train_benchmark(deep_chain(num_blocks), Recipe(checkpointing=checkpointing))

    assert outcome.losses_are_finite
