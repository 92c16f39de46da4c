"""Whether the machine was fit while something was timed, by its sensors and never by the times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
import pynvml

from perfsuite.system.gpus import visible_handles
from perfsuite.units import format_ratio

# Both arms of a pair wait for a processor alike: beside a build that kept both of two processors
# busy, pairs of eight unchanged cells came to eight PASS. With less than a fifth left, the
# scheduler is timed.
_MOST_FOREIGN = 0.8
# Both arms of a pair lose stolen time alike; with a tenth of it gone they no longer do.
_MOST_STOLEN = 0.1
# In per cent, by NVML's last sample: a process that holds a GPU and lets it idle disturbs nothing.
_MOST_GPU_USED = 10
# Of the time, by NVML's own counter: a GPU that slows down for its heat slows down one arm's rounds
# and not the other's.
_MOST_THROTTLED = 0.02


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The sensors at one moment; counters, to be subtracted from each other.

    Attributes:
        cpu_s: Processor seconds of every foreign process, by process id and start.
        total_s: Processor seconds that the machine had to give.
        stolen_s: The part of them that the hypervisor gave to other machines.
        throttled_s: Of each visible GPU, by its UUID: seconds slowed down for its heat.
        gpu_users: Processes that keep a visible GPU busy.
    """

    at_s: float
    cpu_s: Mapping[tuple[int, float], float]
    total_s: float
    stolen_s: float
    throttled_s: Mapping[str, float]
    gpu_users: tuple[int, ...]


def read_sensors() -> Reading:
    """Return the sensors now; call it while no timed process is running."""
    times = psutil.cpu_times()
    throttled_s, gpu_users = _read_gpus()
    return Reading(
        at_s=time.monotonic(),
        cpu_s=_foreign_cpu_s(),
        total_s=sum(times[:8]),  # guest time is in user time already (proc(5))
        stolen_s=getattr(times, "steal", 0.0),
        throttled_s=throttled_s,
        gpu_users=gpu_users,
    )


def why_unfit(before: Reading, after: Reading, num_cores: int) -> str | None:
    """Return what disturbed the time between two readings, None for a fit machine.

    A process that is in one of them only does not count: timed work starts and ends many.
    """
    if before.gpu_users:
        pids = ", ".join(map(str, before.gpu_users))
        return f"other processes compute on the GPU: {pids}"
    wall_s = after.at_s - before.at_s
    for uuid, seconds in after.throttled_s.items():
        share = (seconds - before.throttled_s.get(uuid, seconds)) / wall_s
        if share > _MOST_THROTTLED:
            return f"GPU {uuid} was slowed down for its heat for {format_ratio(share)} of the time"
    stolen = (after.stolen_s - before.stolen_s) / max(after.total_s - before.total_s, wall_s)
    if stolen > _MOST_STOLEN:
        return f"the hypervisor took {format_ratio(stolen)} of the processors' time"
    used_s = {
        process: seconds - before.cpu_s[process]
        for process, seconds in after.cpu_s.items()
        if process in before.cpu_s
    }
    foreign = sum(used_s.values()) / wall_s / num_cores
    if foreign >= _MOST_FOREIGN:
        busiest, _ = max(used_s, key=lambda process: used_s[process])
        return (
            f"other processes took {format_ratio(foreign)} of the processors' time, most of it "
            f"process {busiest}"
        )
    return None


def _foreign_cpu_s() -> dict[tuple[int, float], float]:
    """Return processor seconds of each process outside this one's ancestors and children."""
    own = psutil.Process()
    ours = {own.pid, *(p.pid for p in own.parents()), *(p.pid for p in own.children(True))}
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended, or is not ours to look at
            if process.pid not in ours:
                times = process.cpu_times()
                found[process.pid, process.create_time()] = times.user + times.system
    return found


def _read_gpus() -> tuple[dict[str, float], tuple[int, ...]]:
    throttled_s: dict[str, float] = {}
    users: set[int] = set()
    with visible_handles() as handles:
        for handle in handles:
            with contextlib.suppress(pynvml.NVMLError):  # not reported to this driver or user
                counted = pynvml.nvmlDeviceGetViolationStatus(
                    handle, pynvml.NVML_PERF_POLICY_THERMAL
                )
                throttled_s[pynvml.nvmlDeviceGetUUID(handle)] = counted.violationTime / 1e9
            with contextlib.suppress(pynvml.NVMLError):
                if pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > _MOST_GPU_USED:
                    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                    users |= {process.pid for process in processes}
    return throttled_s, tuple(sorted(users))
