"""What makes a machine unfit, by made-up readings, and one real reading."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from perfsuite.system import fitness
from perfsuite.system.fitness import (
    Reading,
    describe_load,
    describe_power_limit,
    group_seconds,
    probe_host,
    quota_periods,
    read_sensors,
    why_gpus_unfit,
    why_unfit,
)

IDLE = (7, 1.0, 1.0)
BUSY = (8, 2.0, 1.0)


def reading(at_s: float, **changes: Any) -> Reading:
    values: dict[str, Any] = {
        "cpu_s": {},
        "total_s": 2 * at_s,
        "stolen_s": 0.0,
        "throttled_s": {},
        "gpu_users": (),
    }
    return Reading(at_s=at_s, **(values | changes))


@pytest.mark.parametrize(
    ("busy", "quietest"),
    [
        ([0.0, 0.0, 0.0], 2),
        ([0.0, 20.0, 100.0], 1),
        ([100.0, 60.0, 100.0], 1),
        ([100.0, 100.0, 100.0], 2),
        ([100.0], 2),  # a container that does not count the cores it may use
    ],
)
def test_arms_share_the_core_that_others_use_least(
    busy: list[float], quietest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval, percpu: busy)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})

    assert fitness.quietest_core() == quietest


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


def test_what_others_took_is_told_from_a_quarter_of_the_processors_on() -> None:
    before = reading(100.0, cpu_s={IDLE: 5.0, BUSY: 40.0}, busy_s=50.0, group_s=20.0)
    loaded = reading(110.0, cpu_s={IDLE: 5.0, BUSY: 45.0}, busy_s=50.0, group_s=20.0)
    shared = reading(110.0, cpu_s={IDLE: 5.0, BUSY: 40.0}, busy_s=58.0, group_s=22.0)

    assert describe_load(before, loaded, 2) == (
        "other processes took 25.0 % of the processors' time, most of it process 8"
    )
    assert describe_load(before, shared, 2) == (
        "other containers, or their host, took 30.0 % of the processors' time"
    )
    assert describe_load(before, loaded, 3) is None
    assert why_unfit(before, loaded, 2) is None


def test_a_process_counts_as_far_as_the_cores_that_it_may_use_are_ours() -> None:
    elsewhere, half_here = (8, 2.0, 0.0), (9, 3.0, 0.5)
    before = reading(100.0, cpu_s={elsewhere: 40.0, half_here: 40.0})
    after = reading(110.0, cpu_s={elsewhere: 4000.0, half_here: 71.9})

    assert why_unfit(before, after, 2) is None
    later = reading(110.0, cpu_s={elsewhere: 4000.0, half_here: 72.0})
    assert why_unfit(before, later, 2) == (
        "other processes took 80.0 % of the processors' time, most of it process 9"
    )


def test_a_process_that_came_or_went_meanwhile_is_not_counted() -> None:
    before = reading(100.0, cpu_s={IDLE: 50.0})
    after = reading(110.0, cpu_s={BUSY: 50.0})

    assert why_unfit(before, after, 2) is None


def test_time_that_the_hypervisor_took_makes_it_unfit() -> None:
    before, after = reading(100.0), reading(110.0, stolen_s=2.1)

    assert why_unfit(before, after, 2) == ("the hypervisor took 10.5 % of the processors' time")


def test_a_gpu_that_was_too_hot_is_unfit() -> None:
    before = reading(100.0, throttled_s={"GPU-1": 3.0})
    after = reading(110.0, throttled_s={"GPU-1": 4.0})

    assert why_unfit(before, after, 2) is None
    assert why_gpus_unfit(before, after) == (
        "GPU GPU-1 was slowed down for its heat for 10.0 % of the time"
    )


def test_a_power_limit_is_told_of_the_gpu_that_it_held_most_and_leaves_the_machine_fit() -> None:
    before = reading(100.0, capped_s={"GPU-1": 3.0, "GPU-2": 1.0})
    after = reading(110.0, capped_s={"GPU-1": 4.0, "GPU-2": 5.3, "GPU-3": 9.0})

    assert why_gpus_unfit(before, after) is None
    assert describe_power_limit(before, after) == (
        "GPU GPU-2 was held at its power limit for 43.0 % of the time"
    )
    later = dataclasses.replace(after, at_s=120.0)
    assert describe_power_limit(after, later) is None
    assert describe_power_limit(reading(1.0), reading(2.0)) is None


def test_others_on_the_gpu_make_it_unfit() -> None:
    assert why_gpus_unfit(reading(100.0, gpu_users=(12, 13)), reading(110.0)) == (
        "other processes compute on the GPU: 12, 13; end them, or choose GPUs without them "
        "(CUDA_VISIBLE_DEVICES)"
    )


def test_a_quota_that_is_used_up_makes_it_unfit() -> None:
    group = Path("/sys/fs/cgroup/job")
    before = reading(100.0, periods={group: (1000, 40)})

    assert why_unfit(before, reading(110.0, periods={group: (1100, 50)}), 2) is None
    assert why_unfit(before, reading(110.0, periods={group: (1100, 55)}), 2) == (
        "the quota of processor time was used up in 15.0 % of its periods; raise it (docker "
        "--cpus, cpu.max in /sys/fs/cgroup/job), or use whole cores"
    )
    assert why_unfit(reading(100.0), reading(110.0, periods={group: (1100, 55)}), 2) is None


def test_other_containers_that_take_the_processors_make_it_unfit() -> None:
    before = reading(100.0, busy_s=50.0, group_s=20.0)

    assert why_unfit(before, reading(110.0, busy_s=70.0, group_s=24.1), 2) is None
    assert why_unfit(before, reading(110.0, busy_s=70.0, group_s=24.0), 2) == (
        "other containers, or their host, took 80.0 % of the processors' time"
    )
    assert why_unfit(before, reading(110.0, busy_s=70.0), 2) is None


@pytest.mark.parametrize(
    ("groups", "files", "seconds", "periods"),
    [
        ("0::/job\n", {"job/cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}, 2.5, {}),
        (
            "0::/hidden\n",
            {"cpu.stat": "usage_usec 2500000\nnr_periods 9\nnr_throttled 2\n"},
            2.5,
            {"": (9, 2)},
        ),
        (
            "4:cpu,cpuacct:/docker/a\n3:memory:/docker/a\n",
            {
                "cpuacct/docker/a/cpuacct.usage": "1500000000\n",
                "cpu/docker/a/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
                "cpu/docker/cpu.stat": "nr_periods 5\nnr_throttled 1\nthrottled_time 7\n",
            },
            1.5,
            {"cpu/docker": (5, 1)},
        ),
        ("3:memory:/a\n", {}, None, {}),
    ],
)
def test_a_control_group_tells_its_time_and_its_quota(
    tmp_path: Path,
    groups: str,
    files: dict[str, str],
    seconds: float | None,
    periods: dict[str, tuple[int, int]],
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text)
    places = tmp_path / "groups", tmp_path / "mount"

    assert group_seconds(*places) == seconds
    assert quota_periods(*places) == {places[1] / name: n for name, n in periods.items()}


def test_the_processes_around_this_one_are_its_own_and_others_are_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = {pid for pid, *_ in read_sensors().cpu_s}
        child.kill()

    own = psutil.Process()
    assert found.isdisjoint({own.pid, own.ppid(), child.pid})


def test_processes_that_are_hidden_from_this_user_are_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "parents", refuse)
    monkeypatch.setattr(psutil.Process, "children", refuse)

    found = {pid for pid, *_ in read_sensors().cpu_s}

    assert psutil.Process().pid not in found


def test_of_each_process_it_is_known_how_much_of_its_cores_is_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = {-1: [4, 5, 6, 7], -2: [0, 1, 2, 3], -3: [0], -4: None}
    times = SimpleNamespace(user=2.0, system=1.0)
    others = [
        SimpleNamespace(
            pid=pid, info={"cpu_affinity": cores, "cpu_times": times, "create_time": 5.0}
        )
        for pid, cores in allowed.items()
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda _: others)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})

    shares = {pid: share for pid, _, share in read_sensors().cpu_s}

    assert shares == {-1: 0.0, -2: 0.5, -3: 1.0, -4: 1.0}


class Nvml:
    """A GPU that NVML knows: busy by so many per cent, and hot for two seconds so far.

    Waiting is made up: a look at the GPU lasts half a second.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *used: int, shows_heat: bool) -> None:
        self._shows_heat = shows_heat
        self._now_s = 0.0
        self._used = list(used)
        monkeypatch.setattr(fitness.time, "monotonic", lambda: self._now_s)
        monkeypatch.setattr(fitness.time, "sleep", self._sleep)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", self._utilization)
        monkeypatch.setattr(fitness, "visible_handles", lambda: contextlib.nullcontext(["gpu"]))
        for name, answer in {
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=42)],
        }.items():
            monkeypatch.setattr(pynvml, name, lambda handle, answer=answer: answer)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetViolationStatus", self._violations)

    def _sleep(self, _: float) -> None:
        self._now_s += 0.5

    def _utilization(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._used.pop(0) if len(self._used) > 1 else self._used[0])

    def _violations(self, handle: str, policy: int) -> SimpleNamespace:
        if not self._shows_heat:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        seconds = {pynvml.NVML_PERF_POLICY_THERMAL: 2, pynvml.NVML_PERF_POLICY_POWER: 5}[policy]
        return SimpleNamespace(violationTime=seconds * 10**9)


def test_a_busy_gpu_tells_its_users_and_its_heat(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, 60, shows_heat=True)

    found = read_sensors()

    assert (found.gpu_users, found.throttled_s) == ((42,), {"GPU-1": 2.0})
    assert found.capped_s == {"GPU-1": 5.0}


def test_a_gpu_that_idles_has_no_users_and_one_that_hides_its_heat_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Nvml(monkeypatch, 3, shows_heat=False)

    found = read_sensors()

    assert (found.gpu_users, found.throttled_s, found.capped_s) == ((), {}, {})


def test_a_sample_of_our_own_last_pair_is_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(monkeypatch, 97, 97, 40, 0, shows_heat=False)

    assert read_sensors().gpu_users == ()


# --- the host probe ---


class Clock:
    """Reads that differ by the given durations, and by nothing between two measurements."""

    def __init__(self, durations_s: list[float]) -> None:
        self._durations_s = itertools.cycle(durations_s)
        self._now_s = 0.0
        self._is_running = False

    def __call__(self) -> float:
        if self._is_running:
            self._now_s += next(self._durations_s)
        self._is_running = not self._is_running
        return self._now_s


def test_a_probe_is_the_median_of_its_repeats() -> None:
    durations_s = [1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0]

    assert probe_host(Clock(durations_s)) == {"interpreter": 4.0, "memory": 4.0}


def test_one_preempted_repeat_does_not_show() -> None:
    preempted = probe_host(Clock([1.0] * 6 + [50.0]))

    assert preempted == {"interpreter": 1.0, "memory": 1.0}


def test_a_real_probe_takes_time() -> None:
    assert all(seconds > 0 for seconds in probe_host().values())
