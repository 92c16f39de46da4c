"""Whether the machine is fit to time something, by its sensors and never by the times under test.

In a container the processes of others are invisible, but not the time that they take: the host's
processors count it, and the container's control group (cgroups(7), version 1 or 2) counts its own.
"""

import contextlib
import os
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pynvml

from perfsuite.system.gpus import visible_handles
from perfsuite.units import format_ratio

# Both arms of a pair wait for a processor alike: beside a build that kept both of two processors
# busy, pairs of eight unchanged cells came to eight PASS. Below a fifth, time the scheduler.
_MOST_FOREIGN = 0.8
# What widens the spread of pairs, and so explains a cell that they do not decide.
_LEAST_TOLD = 0.25
# Five ticks of the kernel's clock (proc(5)), and the percentage of them that is a load.
_LOOK_AT_CORES_S = 0.05
_BUSY = 50
# Both arms of a pair lose the same stolen time, but no longer where it is a tenth or more.
_MOST_STOLEN = 0.1
# Of the periods of its quota, as of stolen time.
_MOST_HELD = 0.1
# In per cent, by NVML's last sample: a process that holds a GPU and lets it idle disturbs nothing.
_MOST_GPU_USED = 10
# A sample covers up to a second (NVML's nvmlUtilization_t), and one that was taken just before the
# last of our own processes ended stands for another: only what is busy for longer is another's.
_GPU_SAMPLES_S = 2.0
_GPU_LOOK_S = 0.2
# Of the time, by NVML's own counters: a GPU that its heat slows down slows one arm's rounds alone.
# At its power limit it slows down both.
_MOST_THROTTLED = 0.02
# Each piece takes 20 to 50 ms on a server of 2020 to 2025, long against the clock and the
# scheduler's tick. A change of a number here makes all stored probes useless.
_NUM_ADDITIONS = 600_000
# Twice this much memory is touched, which is more than the last-level cache of one core.
_COPIED_BYTES = 64 * 2**20
_NUM_COPIES = 3
# The median of so many: a preempted one does not show, a slower host does.
_NUM_REPEATS = 7

# A control group (cgroups(7)) may limit the process on any level above it.
OWN_GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The sensors at one moment: counters, in seconds, to be subtracted from each other."""

    at_s: float
    # Of each foreign process, by its id, its start, and how much of the cores it may use is ours.
    cpu_s: Mapping[tuple[int, float, float], float]
    total_s: float  # that the machine had to give
    stolen_s: float  # of them, what the hypervisor gave to other machines
    throttled_s: Mapping[str, float]  # by a visible GPU's UUID: slowed down for its heat
    gpu_users: tuple[int, ...]  # processes that keep a visible GPU busy
    busy_s: float = 0.0  # used on the cores that this process may use
    group_s: float | None = None  # used by this process's control group; None where unknown
    # Of each control group with a quota: how many periods that had, and how many used it up.
    periods: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    capped_s: Mapping[str, float] = field(default_factory=dict)  # a GPU held at its power limit


def read_sensors() -> Reading:
    """Return the sensors now; call it while no timed process is running."""
    times = psutil.cpu_times()
    cores = os.sched_getaffinity(0)
    throttled_s, capped_s, gpu_users = _read_gpus()
    foreign_s = _foreign_cpu_s(cores)
    # One after the other, because one is subtracted from the other.
    usable = [one for core, one in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
    group_s = group_seconds()
    return Reading(
        at_s=time.monotonic(),
        cpu_s=foreign_s,
        total_s=sum(times[:8]),  # guest time is in user time already (proc(5))
        stolen_s=getattr(times, "steal", 0.0),
        throttled_s=throttled_s,
        capped_s=capped_s,
        gpu_users=gpu_users,
        busy_s=sum(one.user + one.nice + one.system + one.irq + one.softirq for one in usable),
        group_s=group_s,
        periods=quota_periods(),
    )


def why_unfit(before: Reading, after: Reading, num_cores: int) -> str | None:
    """Return what disturbed processors between two readings, None for a fit machine."""
    wall_s = after.at_s - before.at_s
    stolen = (after.stolen_s - before.stolen_s) / max(after.total_s - before.total_s, wall_s)
    if stolen > _MOST_STOLEN:
        return f"the hypervisor took {format_ratio(stolen)} of the processors' time"
    for group, (periods, held) in after.periods.items():
        periods_before, held_before = before.periods.get(group, (periods, held))
        if held - held_before > _MOST_HELD * (periods - periods_before):
            share = (held - held_before) / (periods - periods_before)
            why = f"the quota of processor time was used up in {format_ratio(share)} of its periods"
            return f"{why}; raise it (docker --cpus, cpu.max in {group}), or use whole cores"
    return describe_load(before, after, num_cores, least=_MOST_FOREIGN)


def describe_load(
    before: Reading, after: Reading, num_cores: int, *, least: float = _LEAST_TOLD
) -> str | None:
    """Return what others took of the processors' time, None where it is less than `least` of it."""
    given_s = num_cores * (after.at_s - before.at_s)
    # Only of processes in both: timed work starts and ends many.
    both = [process for process in after.cpu_s if process in before.cpu_s]
    used_s = {one: one[2] * (after.cpu_s[one] - before.cpu_s[one]) for one in both}
    if (share := sum(used_s.values()) / given_s) >= least:
        took = f"{format_ratio(share)} of the processors' time"
        busiest, *_ = max(used_s, key=used_s.__getitem__)
        return f"other processes took {took}, most of it process {busiest}"
    if before.group_s is not None and after.group_s is not None:
        others_s = (after.busy_s - before.busy_s) - (after.group_s - before.group_s)
        if (share := others_s / given_s) >= least:
            took = f"{format_ratio(share)} of the processors' time"
            return f"other containers, or their host, took {took}"
    return None


def why_gpus_unfit(before: Reading, after: Reading) -> str | None:
    """Return what disturbed the visible GPUs between two readings, None for fit ones."""
    if before.gpu_users:
        users = ", ".join(map(str, before.gpu_users))
        advice = "end them, or choose GPUs without them (CUDA_VISIBLE_DEVICES)"
        return f"other processes compute on the GPU: {users}; {advice}"
    hot = _most_held(before.throttled_s, after.throttled_s, after.at_s - before.at_s)
    return hot and f"GPU {hot[0]} was slowed down for its heat for {hot[1]} of the time"


def describe_power_limit(before: Reading, after: Reading) -> str | None:
    """Return which GPU its power limit held most between two readings; None where it held none."""
    # That is no reason not to time: both arms pay for it.
    held = _most_held(before.capped_s, after.capped_s, after.at_s - before.at_s)
    return held and f"GPU {held[0]} was held at its power limit for {held[1]} of the time"


def _most_held(
    before_s: Mapping[str, float], after_s: Mapping[str, float], wall_s: float
) -> tuple[str, str] | None:
    """The GPU that was held longest, and the share of the time; None for hardly any."""
    shares = {gpu: (held_s - before_s.get(gpu, held_s)) / wall_s for gpu, held_s in after_s.items()}
    gpu = max(shares, key=shares.__getitem__, default=None)
    if gpu is None or shares[gpu] <= _MOST_THROTTLED:
        return None
    return gpu, format_ratio(shares[gpu])


def _foreign_cpu_s(cores: set[int]) -> dict[tuple[int, float, float], float]:
    """Return processor seconds of each process outside this one's ancestors and children."""
    own = psutil.Process()
    ours, found = {own.pid}, {}
    for related in (own.parents, lambda: own.children(recursive=True)):
        with contextlib.suppress(psutil.AccessDenied):  # hidden, so not among all processes either
            ours |= {process.pid for process in related()}
    for process in psutil.process_iter(["cpu_affinity", "cpu_times", "create_time"]):
        allowed, times = process.info["cpu_affinity"], process.info["cpu_times"]
        if process.pid not in ours and times is not None:  # as of what is not ours to look at
            share = len(cores.intersection(allowed)) / len(allowed) if allowed else 1.0
            found[process.pid, process.info["create_time"], share] = times.user + times.system
    return found


def _read_gpus() -> tuple[dict[str, float], dict[str, float], tuple[int, ...]]:
    throttled_s: dict[str, float] = {}
    capped_s: dict[str, float] = {}
    users: set[int] = set()
    heat, power = pynvml.NVML_PERF_POLICY_THERMAL, pynvml.NVML_PERF_POLICY_POWER
    with visible_handles() as handles:
        for handle in handles:
            for policy, held_s in ((heat, throttled_s), (power, capped_s)):
                with contextlib.suppress(pynvml.NVMLError):  # not reported to this driver or user
                    counted = pynvml.nvmlDeviceGetViolationStatus(handle, policy)
                    held_s[pynvml.nvmlDeviceGetUUID(handle)] = counted.violationTime / 1e9
            with contextlib.suppress(pynvml.NVMLError):
                if _is_busy(handle):
                    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                    users |= {process.pid for process in processes}
    return throttled_s, capped_s, tuple(sorted(users))


def _is_busy(handle: Any) -> bool:
    """Whether a GPU is busy in every sample for as long as one of our own may last."""
    end_s = time.monotonic() + _GPU_SAMPLES_S
    while pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > _MOST_GPU_USED:
        if time.monotonic() > end_s:
            return True
        time.sleep(_GPU_LOOK_S)
    return False


def quietest_core() -> int:
    """Return the core that others use least, as a short look shows; the last of those at rest."""
    busy = dict(enumerate(psutil.cpu_percent(_LOOK_AT_CORES_S, percpu=True)))
    # Some containers number cores in one way and count their time in another.
    return min(os.sched_getaffinity(0), key=lambda core: (busy.get(core, 0) // _BUSY, -core))


def probe_host(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return seconds of each of two fixed pieces of work, by name; takes about half a second.

    Stored with each session, they separate a slower machine from slower code.
    "interpreter" is a loop of integer arithmetic, which follows the clock rate of a core;
    "memory" copies a buffer, which follows the bandwidth that neighbours leave.
    """
    source, target = memoryview(bytearray(_COPIED_BYTES)), memoryview(bytearray(_COPIED_BYTES))

    def add() -> None:
        total = 0
        for number in range(_NUM_ADDITIONS):
            total += number ^ 3

    def copy() -> None:
        for _ in range(_NUM_COPIES):
            target[:] = source

    def median_s(work: Callable[[], None]) -> float:
        work()  # the first one meets cold caches, and pages that are not there yet
        return statistics.median(timeit.repeat(work, timer=clock, repeat=_NUM_REPEATS, number=1))

    return {"interpreter": median_s(add), "memory": median_s(copy)}


def group_seconds(groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> float | None:
    """Return the processor seconds of the process's own control group, None where not counted."""
    for folder in group_folders("cpuacct", groups, mount):
        if usage_ns := read_text(folder / "cpuacct.usage"):
            return int(usage_ns) / 1e9
        if usage_us := read_values(folder / "cpu.stat").get("usage_usec"):
            return usage_us / 1e6
    return None


def quota_periods(groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> dict[Path, tuple[int, int]]:
    """Return of each group with a quota its periods so far, and how many used the quota up."""
    found = {}
    for folder in group_folders("cpu", groups, mount):
        values = read_values(folder / "cpu.stat")
        if values.get("nr_periods"):
            found[folder] = (values["nr_periods"], values.get("nr_throttled", 0))
    return found


def group_folders(controller: str, groups: Path, mount: Path) -> Iterator[Path]:
    """Yield the folders of the process's group and of all groups above it."""
    # Some may not exist: a container shows its own group as the root of the mount.
    for line in (read_text(groups) or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        path = base / group.lstrip("/")
        yield path
        yield from (parent for parent in path.parents if parent.is_relative_to(base))


def read_text(path: Path) -> str | None:
    """Return a kernel file's content without surrounding blanks, None where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def read_values(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines have a name and a number each."""
    lines = (line.split() for line in (read_text(path) or "").splitlines())
    return {words[0]: int(words[1]) for words in lines}
