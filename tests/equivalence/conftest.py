"""A model and data so small that a check of them takes a third of a second."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from perfsuite import Workload


@pytest.fixture
def points() -> Callable[[int], TensorDataset]:
    """(num_samples) -> that many points in 6 dimensions, of 3 classes."""
    return _points


@pytest.fixture
def perceptron_workload() -> Callable[..., Workload]:
    """(**parts) -> a perceptron that learns 64 points; any part of the workload may be another."""

    def build(**parts: Any) -> Workload:
        defaults: dict[str, Any] = {
            "name": "perceptron",
            "build_model": _perceptron,
            "build_dataset": lambda split: _points(64) if split == "train" else None,
            "loss": functional.cross_entropy,
            "build_optimizer": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
            "blocks": lambda model: list(model.children())[:1],
            "micro_batch_size": 8,
        }
        return Workload(**{**defaults, **parts})

    return build


def _perceptron() -> nn.Module:
    layers = {"hidden": nn.Linear(6, 8), "tanh": nn.Tanh(), "output": nn.Linear(8, 3)}
    return nn.Sequential(OrderedDict(layers))


def _points(num_samples: int) -> TensorDataset:
    inputs = torch.randn(num_samples, 6, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))
