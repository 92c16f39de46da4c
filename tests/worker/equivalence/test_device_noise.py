"""A device that repeats itself roughly: its noise is allowed, and a mistake beside it is found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from perfsuite import Recipe, Workload
from perfsuite.records.equivalence import EquivalenceReport

NOISE = 1e-6


def make_noisy(model: nn.Module, *, noise: float = NOISE, factor: float = 1.0) -> None:
    """Have this process believe in an accelerator, whose gradients differ in each pass.

    On ranks they are `factor` times too large.
    """
    from perfsuite.worker.equivalence import proof
    from perfsuite.worker.equivalence.checks import expected_step, optimizer_steps, semantics

    for module in (proof, expected_step, optimizer_steps, semantics):
        module.is_accelerator = lambda _: True  # type: ignore[attr-defined]
    # Not torch's: what a model draws is replayed.
    draws = random.Random(os.getpid())
    on_ranks = factor if dist.is_initialized() else 1.0

    def disturb(gradient: Tensor) -> Tensor:
        off = [noise * draws.uniform(-1, 1) for _ in range(gradient.numel())]
        return gradient * on_ranks * (1 + torch.tensor(off).view_as(gradient))

    for parameter in model.parameters():
        parameter.register_hook(disturb)


@pytest.mark.parametrize(
    ("recipe", "check"),
    [(Recipe(parallel="ddp:2"), "T0"), (Recipe(checkpointing="every-block"), "checkpointing")],
)
def test_a_device_that_repeats_itself_roughly_is_told_and_no_mismatch(
    plant: Callable[..., Workload],
    check_equivalence: Callable[..., EquivalenceReport],
    recipe: Recipe,
    check: str,
) -> None:
    report = check_equivalence(plant(make_noisy, everywhere=True), recipe, num_steps=1)

    (row,) = (row for row in report.rows if row.check == check)
    assert row.status == "equivalent", str(report)
    assert "within which the device repeats itself" in row.reason
    assert row.limit is not None
    assert row.limit < 40 * NOISE


def test_a_mistake_beside_the_noise_is_found(
    plant: Callable[..., Workload], check_equivalence: Callable[..., EquivalenceReport]
) -> None:
    def break_it(model: nn.Module) -> None:
        make_noisy(model, factor=1.01)

    report = check_equivalence(plant(break_it, everywhere=True), Recipe(parallel="ddp:2"))

    assert report.status == "mismatch"


def test_a_device_whose_float32_is_none_gives_no_power(
    plant: Callable[..., Workload], check_equivalence: Callable[..., EquivalenceReport]
) -> None:
    def coarsen(model: nn.Module) -> None:
        make_noisy(model, noise=0.0)

        def round_off(gradient: Tensor) -> Tensor:
            is_truth = gradient.dtype == torch.float64
            return gradient if is_truth else gradient.bfloat16().to(gradient.dtype)

        for parameter in model.parameters():
            parameter.register_hook(round_off)

    report = check_equivalence(plant(coarsen, everywhere=True), Recipe(), num_steps=1)

    (row,) = (row for row in report.rows if row.check == "T1")
    assert row.status == "no power"
    assert row.reason.startswith("plain float32 is off by ")
