from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from perfsuite.records.stages import untimed
from perfsuite.worker.training.mixed_precision import PRECISION_POLICIES, LossScaler
from perfsuite.worker.training.step import train_step

CPU = torch.device("cpu")
GOOD = (torch.ones(4, 6), torch.arange(4) % 3)
OVERFLOWING = (torch.full((4, 6), float("inf")), torch.arange(4) % 3)


def parameters_of(trainer: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.module.parameters()]


@pytest.mark.parametrize("precision", ["amp-fp16", "O1", "O2"])
def test_the_scaler_skips_halves_and_recovers_on_inf(make_trainer: Any, precision: str) -> None:
    trainer = make_trainer(precision=precision)
    before = parameters_of(trainer)

    train_step(trainer, iter([OVERFLOWING]), untimed)
    after_overflow, scale_after_overflow = parameters_of(trainer), trainer.scaler.get_scale()
    train_step(trainer, iter([GOOD]), untimed)

    assert all(torch.equal(a, b) for a, b in zip(before, after_overflow, strict=True))
    assert scale_after_overflow == 2.0**15
    assert trainer.scaler.get_scale() == 2.0**15
    assert not any(
        torch.equal(a, b) for a, b in zip(before[-2:], parameters_of(trainer)[-2:], strict=True)
    )


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16", "amp-bf16", "O0", "O3"])
def test_a_precision_that_does_not_scale_has_a_disabled_scaler(precision: str) -> None:
    scaler = LossScaler(PRECISION_POLICIES[precision], CPU, agrees_over_ranks=False)
    loss = torch.ones(())

    assert not scaler.is_enabled()
    assert scaler.scale(loss) is loss
    scaler.update()


def overflow_on_rank_one() -> tuple[float, float, float]:
    """A rank's values after a step that overflows on the last rank only, and after a good one."""
    rank = torch.distributed.get_rank()
    scaler = LossScaler(PRECISION_POLICIES["O1"], CPU, agrees_over_ranks=True)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.full((1,), float("inf") if rank == 1 else 2.0**16)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    skipped, scale = parameter.item(), scaler.get_scale()
    parameter.grad = torch.full((1,), scale)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return skipped, scale, parameter.item()


def test_ranks_with_different_gradients_skip_together(rank_group: Any) -> None:
    assert rank_group(2, overflow_on_rank_one) == [(0.0, 2.0**15, -1.0)] * 2


def unscale_a_mix(overflowing_rank: int) -> tuple[list[float], float]:
    """A plain and a sharded gradient, all 2.0**16 before, on one scaler; and the scale after."""
    mesh = init_device_mesh("cpu", (2,))
    plain = nn.Parameter(torch.zeros(1))
    sharded = nn.Parameter(distribute_tensor(torch.zeros(2), mesh, [Shard(0)]))
    plain.grad = torch.full((1,), 2.0**16)
    sharded.grad = distribute_tensor(torch.full((2,), 2.0**16), mesh, [Shard(0)])
    if torch.distributed.get_rank() == overflowing_rank:
        sharded.grad.to_local().fill_(float("inf"))
    scaler = LossScaler(PRECISION_POLICIES["O1"], CPU, agrees_over_ranks=True)
    optimizer = torch.optim.SGD([{"params": [plain]}, {"params": [sharded]}], lr=1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return [plain.item(), sharded.to_local().item()], scaler.get_scale()


@pytest.mark.parametrize(
    ("overflowing_rank", "expected"),
    [(-1, ([-1.0, -1.0], 2.0**16)), (1, ([0.0, 0.0], 2.0**15))],
)
def test_plain_and_sharded_gradients_are_unscaled_together(
    rank_group: Any, overflowing_rank: int, expected: Any
) -> None:
    assert rank_group(2, unscale_a_mix, overflowing_rank) == [expected] * 2
