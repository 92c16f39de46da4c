"""The examples of a user's own parallelisation are equivalent, and with a mistake they are not."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from perfsuite import Recipe
from perfsuite.records.equivalence import EquivalenceReport

Check = Callable[..., EquivalenceReport]

FORGOTTEN = "is a reduction over it forgotten, or not waited for?"


@pytest.mark.parametrize(
    ("example", "parallel"),
    [("fsdp_tp", "mesh:fsdp=2,tp=2"), ("context_parallel", "mesh:dp=2,cp=2")],
)
def test_the_examples_are_equivalent(check_equivalence: Check, example: str, parallel: str) -> None:
    workload = f"benchmarks.own_parallelism:{example}"

    report = check_equivalence(workload, Recipe(parallel=parallel), num_steps=1)

    assert report.status == "equivalent", str(report)


def forget_cp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(_split_sequence(model, mesh), mesh=mesh["dp"])


def average_over_cp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fully_shard(_split_sequence(model, mesh), mesh=mesh)


def use_first_part(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    model.register_forward_pre_hook(lambda _, args: torch.cat([args[0].chunk(2, 1)[0]] * 2, 1))
    return _split_sequence(model, mesh)


def _split_sequence(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for module in (model, *model.get_submodule("blocks")):
        module.mesh = mesh["cp"]
    return model


FIRST = "the gradient of 'blocks.0.norms.0.weight' "


@pytest.mark.parametrize(
    ("parallelize", "cause"),
    [
        (forget_cp, f"the ranks along axis 'cp' do not have the same gradient: {FORGOTTEN}"),
        (
            average_over_cp,
            f"{FIRST}is 1/2 of what it should be: is it averaged over axis 'dp' or 'cp' where its "
            "sum is due?",
        ),
        (use_first_part, ""),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_context_parallelisation_is_a_mismatch(
    check_equivalence: Check,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
    parallelize: Any,
    cause: str,
) -> None:
    monkeypatch.syspath_prepend(pytestconfig.rootpath)
    example = pkgutil.resolve_name("benchmarks.own_parallelism:context_parallel")()
    workload = dataclasses.replace(example, parallelize=parallelize)

    report = check_equivalence(workload, Recipe(parallel="mesh:dp=2,cp=2"), num_steps=1)

    row = next(row for row in report.rows if row.check == "T1")
    assert row.status == "mismatch", str(report)
    assert f"; likeliest cause: {cause}" in row.reason or not cause, str(report)
