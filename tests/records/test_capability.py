"""What a machine cannot exercise, and the full text of the reason."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe
from perfsuite.records.capability import Hardware, why_not_exercised, why_not_timed

CPU = Hardware(device="cpu")


def gpus(num_gpus: int, capability: tuple[int, int] = (9, 0)) -> Hardware:
    return Hardware(device="cuda", num_gpus=num_gpus, compute_capability=capability)


@pytest.mark.parametrize(
    ("fields", "hardware", "reason"),
    [
        (
            {"parallel": "dp:2"},
            CPU,
            "parallel 'dp:2': nn.DataParallel silently runs the plain module on cpu; "
            "it needs a CUDA device",
        ),
        ({"parallel": "dp:4"}, gpus(2), "parallel 'dp:4' needs 4 GPUs, and 2 are here"),
        ({"parallel": "ddp:4"}, gpus(2), "parallel 'ddp:4' needs 4 GPUs, and 2 are here"),
        ({"parallel": "ddp:2"}, gpus(1), "parallel 'ddp:2' needs 2 GPUs, and 1 is here"),
        (
            {"parallel": "mesh:fsdp=2,tp=2"},
            gpus(2),
            "parallel 'mesh:fsdp=2,tp=2' needs 4 GPUs, and 2 are here",
        ),
        (
            {"parallel": "mesh:dp=4,cp=4"},
            Hardware(device="cpu", num_cores=2),
            "parallel 'mesh:dp=4,cp=4' needs 16 ranks, and 2 cores take at most 8, 4 each",
        ),
        ({}, gpus(0), "parallel 'single' needs 1 GPU, and 0 are here"),
        (
            {"parallel": "horovod:2"},
            CPU,
            "parallel 'horovod:2' needs the package horovod, which cannot be imported; "
            "horovod-like:2 does the same with torch.distributed",
        ),
        (
            {"precision": "tf32"},
            CPU,
            "precision 'tf32' needs an NVIDIA GPU of compute capability 8.0 or more; "
            "this cell runs on cpu",
        ),
        (
            {"precision": "tf32"},
            gpus(1, (7, 5)),
            "precision 'tf32' needs an NVIDIA GPU of compute capability 8.0 or more; "
            "this cell runs on compute capability (7, 5)",
        ),
        (
            {"precision": "fp8-rowwise"},
            CPU,
            "precision 'fp8-rowwise': torchao is not installed: pip install 'perfsuite[fp8]'",
        ),
        (
            {"pin_memory": True},
            CPU,
            "pin_memory=True pins nothing without an accelerator; this cell runs on cpu",
        ),
    ],
)
def test_what_a_machine_cannot_exercise_has_a_reason(
    fields: dict[str, Any], hardware: Hardware, reason: str
) -> None:
    assert why_not_exercised(Recipe(**fields), hardware) == reason


@pytest.mark.parametrize(
    ("fields", "hardware"),
    [
        ({"parallel": "ddp:4"}, CPU),
        ({"parallel": "dp:2"}, gpus(1)),
        ({"parallel": "dp:2"}, gpus(2)),
        ({"parallel": "ddp:2"}, gpus(2)),
        ({"precision": "tf32"}, gpus(1, (8, 0))),
        ({"pin_memory": True}, gpus(1)),
        ({"parallel": "horovod:2"}, Hardware(device="cpu", has_horovod=True)),
    ],
)
def test_what_a_machine_can_exercise_has_none(fields: dict[str, Any], hardware: Hardware) -> None:
    assert why_not_exercised(Recipe(**fields), hardware) is None


def test_more_ranks_than_the_cores_can_take_are_not_started() -> None:
    two_cores = Hardware(device="cpu", num_cores=2)

    assert why_not_exercised(Recipe(parallel="hsdp:2x4"), two_cores) is None
    assert why_not_exercised(Recipe(parallel="ddp:9"), two_cores) == (
        "parallel 'ddp:9' needs 9 ranks, and 2 cores take at most 8, 4 each"
    )


@pytest.mark.parametrize(
    ("precision", "hardware", "reason"),
    [
        (
            "fp8-tensorwise",
            CPU,
            "precision 'fp8-tensorwise' has no time here: 8-bit products need an NVIDIA GPU of "
            "compute capability 8.9 or more, and torchao emulates them on cpu",
        ),
        (
            "fp8-rowwise",
            gpus(1, (8, 9)),
            "precision 'fp8-rowwise' has no time here: 8-bit products need an NVIDIA GPU of "
            "compute capability 9.0 or more, and torchao emulates them on compute capability "
            "(8, 9)",
        ),
        ("fp8-rowwise", gpus(1), None),
        ("fp8-tensorwise", gpus(1, (8, 9)), None),
        ("amp-bf16", CPU, None),
    ],
)
def test_emulated_arithmetic_has_no_time(
    precision: str, hardware: Hardware, reason: str | None
) -> None:
    assert why_not_timed(Recipe(precision=precision), hardware) == reason
