"""A run that could not have shown a bug has no power, and is never called equivalent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]

SEMANTIC_CHECKS = {
    "fp64": "T1",
    "fp32": "T1",
    "bf16": "T2",
    "amp-bf16": "T2",
    "amp-fp16": "T2",
    "O1": "T2",
    "O2": "T2",
    "O3": "T2",
}


def assert_no_power(report: EquivalenceReport, check: str, reason: str) -> None:
    row = next(row for row in report.rows if row.check == check)
    assert report.status == "no power", str(report)
    assert row.status == "no power", str(report)
    assert row.reason.startswith(reason), str(report)


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize(("precision", "check"), SEMANTIC_CHECKS.items())
def test_gradients_that_are_zero_prove_nothing(
    check_equivalence: Check,
    perceptron_workload: Build,
    parallel: str,
    precision: str,
    check: str,
) -> None:
    silent = perceptron_workload(loss=lambda *args: functional.cross_entropy(*args) * 0)

    report = check_equivalence(silent, Recipe(parallel=parallel, precision=precision), num_steps=1)

    assert_no_power(report, check, "all gradients are zero")


def test_gradients_that_are_zero_prove_nothing_of_recomputation(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    silent = perceptron_workload(loss=lambda *args: functional.cross_entropy(*args) * 0)

    report = check_equivalence(silent, Recipe(checkpointing="every-block"), num_steps=1)

    assert {row.check: row.status for row in report.rows}["T1"] == "no power"


class Elementwise(nn.Module):
    """A model without an operator that autocast casts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.bias = nn.Parameter(torch.linspace(-1.0, 1.0, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs * self.weight + self.bias)


@pytest.mark.parametrize("parallel", ["single", "ddp:2"])
@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16", "O1"])
def test_a_low_precision_that_never_ran_is_not_proven(
    check_equivalence: Check, perceptron_workload: Build, parallel: str, precision: str
) -> None:
    elementwise = perceptron_workload(build_model=Elementwise)

    report = check_equivalence(elementwise, Recipe(parallel=parallel, precision=precision))

    assert_no_power(report, "T2", "low precision left no trace: the error is ")


@pytest.mark.parametrize("precision", SEMANTIC_CHECKS)
def test_ranks_with_equal_samples_prove_nothing(
    check_equivalence: Check,
    perceptron_workload: Build,
    points: Callable[[int], TensorDataset],
    precision: str,
) -> None:
    inputs, targets = points(1).tensors
    alike = TensorDataset(inputs.repeat(64, 1), targets.repeat(64))
    workload = perceptron_workload(build_dataset=lambda split: alike if split == "train" else None)

    report = check_equivalence(workload, Recipe(parallel="ddp:2", precision=precision), num_steps=1)

    assert_no_power(
        report,
        "T0",
        "two ranks saw the same data, so that a missing reduction would change nothing",
    )
