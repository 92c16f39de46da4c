"""Faults that a calibration injects: memory that is kept, a wait for the other ranks."""

from __future__ import annotations

import pytest
import torch

from perfsuite.errors import WorkloadError
from perfsuite.ranks.messages import TurnChannel
from perfsuite.records.stages import Stage
from perfsuite.worker.jobs.faults import LEAKED_BYTES, inject_fault
from perfsuite.worker.measure.memory import measure_peak

CPU = torch.device("cpu")


def iterate(stage: Stage) -> None:
    with stage("forward"):
        torch.ones(1000).sum()


def channel(**planted: object) -> TurnChannel:
    return TurnChannel(path="/nowhere", arm="head", **planted)  # type: ignore[arg-type]


def peak_bytes(planted: object) -> int:
    peak = measure_peak(planted, iter(()), CPU).peak_bytes  # type: ignore[arg-type]
    assert peak is not None
    return peak


@pytest.mark.parametrize("given", [None, channel(), channel(planted_recipe=("precision=fp32",))])
def test_an_arm_without_a_plant_runs_what_it_is_given(given: TurnChannel | None) -> None:
    assert inject_fault(iterate, given, CPU) is iterate


def test_a_leak_is_in_the_peak_of_every_iteration() -> None:
    planted = inject_fault(iterate, channel(planted_fault="leak"), CPU)

    leaked = [peak_bytes(planted) - peak_bytes(iterate) for _ in range(3)]

    assert leaked == [LEAKED_BYTES] * 3


def test_one_process_on_a_cpu_has_no_rank_to_wait_for() -> None:
    with pytest.raises(WorkloadError) as raised:
        inject_fault(iterate, channel(planted_fault="synchronization"), CPU)

    assert str(raised.value) == (
        "a synchronization cannot be planted in one process on a CPU, where nothing is "
        "asynchronous; use a cell of several ranks, such as ddp:2"
    )
