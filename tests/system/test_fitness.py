"""What makes a machine unfit, by made-up readings, and one real reading."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from perfsuite.system import fitness
from perfsuite.system.fitness import Reading, read_sensors, why_unfit

IDLE = (7, 1.0)
BUSY = (8, 2.0)


def reading(at_s: float, **changes: Any) -> Reading:
    values: dict[str, Any] = {
        "cpu_s": {},
        "total_s": 2 * at_s,
        "stolen_s": 0.0,
        "throttled_s": {},
        "gpu_users": (),
    }
    return Reading(at_s=at_s, **(values | changes))


def test_a_machine_without_other_load_is_fit() -> None:
    before = reading(100.0, cpu_s={IDLE: 5.0}, throttled_s={"GPU-1": 3.0})
    after = reading(110.0, cpu_s={IDLE: 5.1}, throttled_s={"GPU-1": 3.1})

    assert why_unfit(before, after, 2) is None


def test_processes_that_take_four_fifths_of_the_processors_make_it_unfit() -> None:
    before = reading(100.0, cpu_s={IDLE: 5.0, BUSY: 40.0})
    after = reading(110.0, cpu_s={IDLE: 5.5, BUSY: 55.5})

    assert why_unfit(before, after, 2) == (
        "other processes took 80.0 % of the processors' time, most of it process 8"
    )
    assert why_unfit(before, after, 4) is None


def test_a_process_that_came_or_went_meanwhile_is_not_counted() -> None:
    before = reading(100.0, cpu_s={IDLE: 50.0})
    after = reading(110.0, cpu_s={BUSY: 50.0})

    assert why_unfit(before, after, 2) is None


def test_time_that_the_hypervisor_took_makes_it_unfit() -> None:
    before, after = reading(100.0), reading(110.0, stolen_s=2.1)

    assert why_unfit(before, after, 2) == ("the hypervisor took 10.5 % of the processors' time")


def test_a_gpu_that_was_too_hot_makes_it_unfit() -> None:
    before = reading(100.0, throttled_s={"GPU-1": 3.0})
    after = reading(110.0, throttled_s={"GPU-1": 4.0})

    assert why_unfit(before, after, 2) == (
        "GPU GPU-1 was slowed down for its heat for 10.0 % of the time"
    )


def test_others_on_the_gpu_make_it_unfit() -> None:
    assert why_unfit(reading(100.0, gpu_users=(12, 13)), reading(110.0), 2) == (
        "other processes compute on the GPU: 12, 13"
    )


def test_the_processes_around_this_one_are_its_own_and_others_are_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = {pid for pid, _ in read_sensors().cpu_s}
        child.kill()

    own = psutil.Process()
    assert found.isdisjoint({own.pid, own.ppid(), child.pid})


class Nvml:
    """A GPU that NVML knows: busy by so many per cent, and hot for two seconds so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, used: int, *, shows_heat: bool) -> None:
        self._shows_heat = shows_heat
        monkeypatch.setattr(fitness, "visible_handles", lambda: contextlib.nullcontext(["gpu"]))
        for name, answer in {
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=used),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=42)],
        }.items():
            monkeypatch.setattr(pynvml, name, lambda handle, answer=answer: answer)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetViolationStatus", self._violations)

    def _violations(self, handle: str, policy: int) -> SimpleNamespace:
        if not self._shows_heat:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert policy == pynvml.NVML_PERF_POLICY_THERMAL
        return SimpleNamespace(violationTime=2_000_000_000)


def test_a_busy_gpu_tells_its_users_and_its_heat(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, used=60, shows_heat=True)

    found = read_sensors()

    assert (found.gpu_users, found.throttled_s) == ((42,), {"GPU-1": 2.0})


def test_a_gpu_that_idles_has_no_users_and_one_that_hides_its_heat_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Nvml(monkeypatch, used=3, shows_heat=False)

    found = read_sensors()

    assert (found.gpu_users, found.throttled_s) == ((), {})
