"""Joules by a GPU's own counter, where it has one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pynvml
import pytest

from perfsuite.system import energy
from perfsuite.system.energy import watch_energy


@pytest.fixture
def counter_mj(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the counter of the second of two GPUs reads, one value a reading."""
    values: list[int] = []
    readings: Iterator[int] = iter(lambda: values.pop(0), None)
    gpus = [SimpleNamespace(uuid="GPU-1"), SimpleNamespace(uuid="GPU-2")]
    monkeypatch.setattr(energy, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(energy, "nvml", lambda: nullcontext(True))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: {"GPU-2": next(readings)}[gpu]
    )
    return values


def test_joules_are_those_since_the_watch_began(counter_mj: list[int]) -> None:
    counter_mj += [7_000_000, 7_001_500, 7_002_000]
    read = watch_energy(1)

    assert [read(), read()] == [("GPU-2", 1.5), ("GPU-2", 2.0)]


def test_a_gpu_that_does_not_count_joules_has_none(
    counter_mj: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(gpu: str) -> int:
        raise pynvml.NVMLError_NotSupported

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)

    assert watch_energy(0)() is None


def test_without_a_gpu_there_are_no_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "visible_gpus", list)

    assert watch_energy(0)() is None
