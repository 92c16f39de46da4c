"""Usage over time: samples until the end, and what a GPU does not tell."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pynvml
import pytest

from perfsuite.system import usage
from perfsuite.system.usage import UsageLog, open_meter


def test_the_last_sample_is_of_the_end_even_of_a_training_shorter_than_a_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "PERIOD_S", 3600.0)
    times_s = iter([100.0, 100.5])
    log = UsageLog(lambda: (1.0, 7), clock=lambda: next(times_s))

    (sample,) = log.stop()

    assert (sample.at_s, sample.utilization_ratio, sample.memory_bytes) == (0.5, 1.0, 7)


def test_the_cpu_is_between_idle_and_busy_and_this_process_has_memory():
    with open_meter(None) as read:
        ratio, num_bytes = read()

    assert 0.0 <= ratio <= 1.0
    assert num_bytes > 2**20


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as NVML shows it, half busy."""
    monkeypatch.setattr(usage, "nvml", lambda: nullcontext())
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetUtilizationRates", lambda handle: SimpleNamespace(gpu=50)
    )
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(used=2**30)
    )


def test_a_gpu_is_asked_through_nvml(gpu):
    with open_meter("GPU-1") as read:
        assert read() == (0.5, 2**30)


def test_a_gpu_that_does_not_tell_how_busy_it_is_has_no_utilisation(gpu, monkeypatch):
    def refuse(handle):
        raise pynvml.NVMLError_NotSupported

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", refuse)

    with open_meter("MIG-1") as read:
        assert read() == (None, 2**30)


def test_a_gpu_that_shares_the_machines_memory_uses_what_all_use_of_it(gpu, monkeypatch):
    def refuse(handle):
        raise pynvml.NVMLError_NotSupported

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", refuse)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(used=7))

    with open_meter("GPU-1") as read:
        assert read() == (0.5, 7)


def test_without_nvml_a_gpu_has_no_meter(monkeypatch):
    monkeypatch.setattr(usage, "nvml", lambda: nullcontext(pynvml.NVMLError_LibraryNotFound()))

    with open_meter("GPU-1") as meter:
        assert meter is None
