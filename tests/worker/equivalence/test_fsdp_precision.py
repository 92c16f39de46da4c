"""FSDP's own mixed precision, on real ranks: as one process that casts the same computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.worker.training.parallel import fsdp

Build = Callable[..., Workload]
Check = Callable[..., EquivalenceReport]

FIRST_GRADIENT = "the gradient of 'hidden.weight' differs at step 1"


def mp_bf16(parallel: str, **fields: Any) -> Recipe:
    return Recipe(parallel=parallel, precision="mp-bf16", **fields)


@pytest.mark.parametrize("name", ["toy-mlp", "lenet-digits"])
@pytest.mark.parametrize(
    "recipe",
    [
        mp_bf16("fsdp:2"),
        mp_bf16("hsdp:2x1", checkpointing="every-block"),
        mp_bf16("hsdp:2x2", micro_batch_size=8, grad_accumulation_steps=2, clip_grad_norm=0.1),
    ],
    ids=["fsdp", "hsdp-checkpointing", "hsdp-accumulation-clipping"],
)
def test_a_built_in_workload_is_equivalent(
    check_equivalence: Check, name: str, recipe: Recipe
) -> None:
    report = check_equivalence(name, recipe)

    assert report.is_equivalent, str(report)
    assert {"T0", "T2"} <= {row.check for row in report.rows}


class Recurrent(nn.Module):
    """A block that holds its weights in a list too, and gets float32 from a buffer outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.register_buffer("position", torch.randn(8))
        self.second = nn.LSTM(8, 8, batch_first=True)
        self.third = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.second((self.first(x) + self.position)[:, None])
        return self.third(x[:, 0])


@pytest.mark.parametrize("checkpointing", ["none", "every-block"])
def test_blocks_are_called_with_what_fsdp_casts(
    check_equivalence: Check, perceptron_workload: Build, checkpointing: str
) -> None:
    workload = perceptron_workload(
        build_model=Recurrent, blocks=lambda model: [model.first, model.second, model.third]
    )

    report = check_equivalence(workload, mp_bf16("fsdp:2", checkpointing=checkpointing))

    assert report.is_equivalent, str(report)


@pytest.mark.parametrize("blocks", [None, list], ids=["inside", "a block of its own"])
def test_batchnorm_computes_with_weights_in_float32(
    check_equivalence: Check, perceptron_workload: Build, blocks: Any
) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    workload = perceptron_workload(build_model=build, blocks=blocks)

    report = check_equivalence(workload, mp_bf16("fsdp:2"))

    rows = {row.check: row for row in report.rows}
    assert (rows["T0"].status, rows["T0"].error) == ("equivalent", 0.0)
    assert rows["T2"].status == "mismatch"  # each rank normalises by its own statistics
    assert "BatchNorm: each rank" in rows["T2"].reason


def with_policy(**changes: Any) -> Callable[[nn.Module], None]:
    """Let FSDP on this rank cast otherwise."""

    def plant(model: nn.Module) -> None:
        fsdp.MixedPrecisionPolicy = lambda low, wide, output: MixedPrecisionPolicy(
            **{"param_dtype": low, "reduce_dtype": wide, "output_dtype": output, **changes}
        )

    return plant


def scale_gradients(model: nn.Module) -> None:
    def finish(strategy: Any) -> None:
        for parameter in strategy._model.parameters():
            parameter.grad.mul_(1 + 1 / (8 * 2))

    fsdp.FSDP.finish_gradients = finish


@pytest.mark.parametrize("parallel", ["fsdp:2", "hsdp:2x1"])
@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        (
            with_policy(reduce_dtype=torch.bfloat16),
            "; likeliest cause: the reduction is compressed to bf16",
        ),
        (with_policy(param_dtype=None), ""),
        (with_policy(param_dtype=torch.float16), ""),
        (scale_gradients, "; likeliest cause: the loss or the gradients are scaled"),
    ],
    ids=["reduced in bf16", "gathered in float32", "gathered in float16", "scaled"],
)
def test_what_fsdp_casts_otherwise_is_found(
    check_equivalence: Check, plant: Build, parallel: str, bug: Any, cause: str
) -> None:
    report = check_equivalence(plant(bug), mp_bf16(parallel), num_steps=1)

    row = next(row for row in report.rows if row.check == "T0")
    assert report.status == row.status == "mismatch", str(report)
    assert row.reason.startswith(FIRST_GRADIENT), str(report)
    assert cause in row.reason
