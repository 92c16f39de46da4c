"""A model and data so small that a check takes a third of a second, and how bugs are planted."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport


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


@pytest.fixture
def plant(perceptron_workload: Callable[..., Workload]) -> Callable[..., Workload]:
    """(bug, everywhere=False, **parts) -> a perceptron workload with a bug.

    `bug(model)` breaks the model, or something else in the process that builds it, which is a
    rank's own and ends with it. It is called where there is a process group, so that it spares the
    process that computes references; `everywhere` is for what no reference uses.
    """

    def build(
        bug: Callable[[nn.Module], None], *, everywhere: bool = False, **parts: Any
    ) -> Workload:
        healthy = perceptron_workload(**parts)

        def build_model() -> nn.Module:
            model = healthy.build_model()
            if everywhere or dist.is_initialized():
                bug(model)
            return model

        return dataclasses.replace(healthy, build_model=build_model)

    return build


@pytest.fixture
def expect_mismatch(
    check_equivalence: Callable[..., EquivalenceReport],
) -> Callable[..., dict[str, str]]:
    """(workload, recipe, check, where, cause, num_steps=1) -> the status of every check.

    Asserts that the check is a mismatch there, with this likeliest cause.
    """

    def expect(
        workload: Workload, recipe: Recipe, check: str, where: str, cause: str, num_steps: int = 1
    ) -> dict[str, str]:
        report = check_equivalence(workload, recipe, num_steps=num_steps)
        row = next(row for row in report.rows if row.check == check)
        assert report.status == row.status == "mismatch", str(report)
        assert row.reason.startswith(f"{where} by "), str(report)
        assert f"; likeliest cause: {cause}" in row.reason, str(report)
        return {row.check: row.status for row in report.rows}

    return expect


def _perceptron() -> nn.Module:
    layers = {"hidden": nn.Linear(6, 8), "tanh": nn.Tanh(), "output": nn.Linear(8, 3)}
    return nn.Sequential(OrderedDict(layers))


def _points(num_samples: int) -> TensorDataset:
    inputs = torch.randn(num_samples, 6, generator=torch.Generator().manual_seed(7))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))
