from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.worker.training.build import build_trainer
from perfsuite.worker.training.trainer import Trainer

CPU = torch.device("cpu")


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def _classes(split: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(24, 6, generator=generator)
    return TensorDataset(inputs, torch.arange(24) % 3)


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    """(any field of a Workload) -> a small classifier, those fields replaced."""

    def make(**fields: Any) -> Workload:
        defaults: dict[str, Any] = {
            "name": "small",
            "build_model": _mlp,
            "build_dataset": _classes,
            "loss": nn.functional.cross_entropy,
            "build_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "micro_batch_size": 4,
        }
        return Workload(**{**defaults, **fields})

    return make


@pytest.fixture
def make_trainer(make_workload: Callable[..., Workload]) -> Callable[..., Trainer]:
    """(workload=None, any field of a Recipe) -> a trainer on the CPU, from seed 5."""

    def make(workload: Workload | None = None, **fields: Any) -> Trainer:
        return build_trainer(workload or make_workload(), Recipe(**fields), device=CPU, seed=5)

    return make
