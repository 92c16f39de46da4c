"""Faults that a calibration injects: memory that is kept, a wait for the other ranks."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from perfsuite.errors import WorkloadError
from perfsuite.gate.judge.counts import compare_counts
from perfsuite.ranks.messages import TurnChannel
from perfsuite.records.cell import Memory
from perfsuite.records.run_file import StoredCell
from perfsuite.records.stages import Stage
from perfsuite.worker.jobs.cell import LEAKED_BYTES, inject_fault
from perfsuite.worker.measure.counters import count_iteration
from perfsuite.worker.measure.iterations import Iterations, T, run_iterations
from perfsuite.worker.measure.memory import measure_peak

CPU = torch.device("cpu")


def iterate(stage: Stage) -> None:
    with stage("forward"):
        torch.ones(1000).sum()


def channel(**planted: object) -> TurnChannel:
    return TurnChannel(path="/nowhere", arm="head", **planted)  # type: ignore[arg-type]


def planted_in(asked: Iterations[T], **planted: object) -> T:
    return found(asked, channel(**planted))


def found(asked: Iterations[T], planted: TurnChannel | None) -> T:
    """What the iterations find beside what is planted in them."""
    results: list[T] = []

    def keep() -> Iterations[None]:
        results.append((yield from asked))

    run_iterations(inject_fault(keep(), planted, CPU), iterate)
    return results[0]


def test_an_arm_without_a_plant_runs_what_it_is_given() -> None:
    for given in (None, channel(), channel(planted_recipe=("precision=fp32",))):
        counted = found(count_iteration(), given)

        assert counted.ops == run_iterations(count_iteration(), iterate).ops == 2


def test_a_leak_is_in_the_peak_of_every_iteration() -> None:
    def peak_bytes(**planted: object) -> int:
        return planted_in(measure_peak(iter(()), CPU), **planted).peak_bytes

    leaked = [peak_bytes(planted_fault="leak") - peak_bytes() for _ in range(3)]

    assert leaked == [LEAKED_BYTES] * 3


def test_a_leak_is_found_beside_the_peak_of_any_model() -> None:
    def asked(num_bytes: int) -> StoredCell:
        metric: Literal["requested_peak"] = "requested_peak"
        memory = Memory(metric=metric, peak_bytes=num_bytes, per_rank=(num_bytes,))
        return StoredCell(median_s=1.0, memory=memory)

    compared = compare_counts(asked(60 * 2**30), asked(60 * 2**30 + LEAKED_BYTES))

    assert [change.name for change in compared.increases] == ["memory"]


def test_one_process_on_a_cpu_has_no_rank_to_wait_for() -> None:
    with pytest.raises(WorkloadError) as raised:
        planted_in(count_iteration(), planted_fault="synchronization")

    assert str(raised.value) == (
        "a synchronization cannot be planted in one process on a CPU, where nothing is "
        "asynchronous; use a cell of several ranks, such as ddp:2"
    )
