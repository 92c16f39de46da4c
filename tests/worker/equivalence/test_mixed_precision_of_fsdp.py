"""FSDP's own mixed precision computes what one process does with parameters of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport

Check = Callable[..., EquivalenceReport]
Build = Callable[..., Workload]


def normalised() -> nn.Module:
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel": "fsdp:2"},
        {
            "parallel": "fsdp:2",
            "checkpointing": "every-block",
            "clip_grad_norm": 0.1,
            "grad_accumulation_steps": 2,
        },
        {"parallel": "hsdp:2x1", "grad_accumulation_steps": 2},
    ],
    ids=["plain", "recomputed", "hybrid"],
)
def test_it_is_equivalent_and_every_planted_bug_is_found(
    check_equivalence: Check, perceptron_workload: Build, fields: dict[str, Any]
) -> None:
    report = check_equivalence(perceptron_workload(), Recipe(precision="mp-bf16", **fields))

    assert report.status == "equivalent", str(report)
    assert {row.check for row in report.rows} >= {"T0", "T2", "data"}
    powers = [row.power.split("/") for row in report.rows if row.power]
    assert all(found == planted for found, planted in powers), str(report)


def test_batch_normalisation_stays_in_float32(
    check_equivalence: Check, perceptron_workload: Build
) -> None:
    """It takes numbers of 16 bits and has buffers of 32, so that its own may not be cast."""
    workload = perceptron_workload(build_model=normalised, blocks=None)

    report = check_equivalence(workload, Recipe(parallel="fsdp:2", precision="mp-bf16"))

    reduction = next(row for row in report.rows if row.check == "T0")
    assert (reduction.status, reduction.error) == ("equivalent", 0), str(report)
