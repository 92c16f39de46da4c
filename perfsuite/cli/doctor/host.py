"""Processors, clocks and memory: what a time on the CPU depends on."""

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from perfsuite.cli.doctor.findings import Finding
from perfsuite.system.fitness import MOUNT, OWN_GROUPS, group_folders, read_text, read_values
from perfsuite.units import counted, format_bytes, format_ratio

# Where the machine does not show a value, as virtual machines often do not.
_NOT_READABLE = "not readable here"
_CPU = Path("/sys/devices/system/cpu")
# With half of the processors taken, a group of as many ranks no longer has one for each. Measured
# with a load of 2.9 on 2 cores: the spread of a step between processes was 9.5 % instead of 0.8 %.
_BUSY_RATIO = 0.5
# The gate's default tolerance: more stolen time than that is a slowdown by itself.
_STEAL_RATIO = 0.02
_STEAL_WINDOW_S = 0.2
# The process that ranks are forked from takes 715 MB and each rank 293 MB of its own (measured:
# resnet18 under DistributedDataParallel, torch 2.15 on a CPU); rounded up.
_ONE_RANK_BYTES = 2**30
_TWO_RANKS_BYTES = 3 * 2**29
# Docker's default for all of /dev/shm. Measured: two workers with batches of 9.6 MB pass at 64 MiB
# and fail at 4 MiB with "No space left on device".
_SHARED_MEMORY_BYTES = 64 * 2**20


def examine_host() -> list[Finding]:
    """Return what is found about processors, clocks, load and memory."""
    num_allowed = len(os.sched_getaffinity(0))
    governors = [read_text(path) for path in _CPU.glob("cpu[0-9]*/cpufreq/scaling_governor")]
    left = memory_left_bytes()
    available = psutil.virtual_memory().available
    return [
        cores_finding(os.cpu_count() or num_allowed, num_allowed, cpu_quota()),
        governor_finding([governor for governor in governors if governor]),
        turbo_finding(
            no_turbo=read_text(_CPU / "intel_pstate/no_turbo"),
            boost=read_text(_CPU / "cpufreq/boost"),
        ),
        load_finding(os.getloadavg()[0], num_allowed),
        steal_finding(psutil.cpu_times_percent(_STEAL_WINDOW_S).steal / 100),
        memory_finding(available if left is None else min(available, left)),
        shared_memory_finding(Path("/dev/shm")),
    ]


def cores_finding(num_cores: int, num_allowed: int, quota: float | None) -> Finding:
    """Judge the processors that affinity allows, and the quota of time of the control group."""
    text = f"{num_cores}" if num_allowed == num_cores else f"{num_allowed} of {num_cores} allowed"
    if quota is not None and quota < num_allowed:
        text += f", but a cgroup quota of {quota:g}: once it is used up, every process stands "
        text += "still until the next period"
        advice = "raise the quota (docker --cpus), or use --cpuset-cpus in its place"
        return Finding("cores", "warn", text, advice)
    if num_allowed == 1:
        text += ": ranks and loader workers take turns on one core"
        hint = "compare only cells without ranks and workers, or use a machine with 2 cores or more"
        return Finding("cores", "warn", text, hint)
    return Finding("cores", "ok", text)


def governor_finding(governors: Sequence[str]) -> Finding:
    """Judge the frequency governors, one of each processor; none where they cannot be read."""
    text = ", ".join(sorted(set(governors))) or _NOT_READABLE
    if text in ("performance", _NOT_READABLE):
        return Finding("frequency governor", "ok", text)
    advice = "sudo cpupower frequency-set --governor performance"
    return Finding("frequency governor", "warn", f"{text}: the clock follows the load", advice)


def turbo_finding(*, no_turbo: str | None, boost: str | None) -> Finding:
    """Judge the turbo clock by the files of intel_pstate and cpufreq; None is not readable."""
    if no_turbo is None and boost is None:
        return Finding("turbo", "ok", _NOT_READABLE)
    if no_turbo == "1" or (no_turbo is None and boost == "0"):
        return Finding("turbo", "ok", "off")
    off, file = ("0", "cpufreq/boost") if no_turbo is None else ("1", "intel_pstate/no_turbo")
    text = "on: the clock follows temperature and busy cores"
    return Finding("turbo", "warn", text, f"echo {off} | sudo tee {_CPU / file}")


def load_finding(load: float, num_cores: int) -> Finding:
    """Judge the load average of the last minute against the usable processors."""
    text = f"{load:.2f} on {counted(num_cores, 'core')}"
    if load <= _BUSY_RATIO * num_cores:
        return Finding("load", "ok", text)
    text += ": other processes compete with the ranks"
    return Finding("load", "warn", text, "end them (see top), or wait a minute if they have ended")


def steal_finding(stolen_ratio: float) -> Finding:
    """Judge the part of the processors' time that the hypervisor took."""
    text = format_ratio(stolen_ratio)
    if stolen_ratio <= _STEAL_RATIO:
        return Finding("steal time", "ok", text)
    text += ": the hypervisor gives this machine's processors to others"
    return Finding("steal time", "warn", text, "use dedicated processors, or a quieter hour")


def memory_finding(available_bytes: int) -> Finding:
    """Judge the memory that can be used without swapping."""
    text = f"{format_bytes(available_bytes)} available"
    advice = "end other programs, or raise the container's limit"
    if available_bytes < _ONE_RANK_BYTES:
        return Finding("memory", "fail", f"{text}: not enough for one rank", advice)
    if available_bytes < _TWO_RANKS_BYTES:
        return Finding("memory", "warn", f"{text}: not enough for two ranks", advice)
    return Finding("memory", "ok", text)


def shared_memory_finding(folder: Path) -> Finding:
    """Judge the free part of the shared memory, through which loader workers pass their batches."""
    subject = "shared memory"
    try:
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(subject, "fail", str(error), "mount it, as docker does")
    text = f"{format_bytes(free_bytes)} free in {folder}"
    if free_bytes >= _SHARED_MEMORY_BYTES:
        return Finding(subject, "ok", text)
    need = format_bytes(_SHARED_MEMORY_BYTES)
    text += f": loader workers pass their batches through it, and need {need}"
    return Finding(subject, "fail", text, "docker run --shm-size=1g, or remove what fills it")


def cpu_quota(groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> float | None:
    """Return how many processors' worth of time the process may use; None without a limit."""
    quotas = []
    for folder in group_folders("cpu", groups, mount):
        first = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = (read_text(folder / "cpu.max") or "").split() or first
        if quota and period and quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_left_bytes(groups: Path = OWN_GROUPS, mount: Path = MOUNT) -> int | None:
    """Return how many more bytes the process's groups may use; None without a limit."""
    left = []
    names = ("max", "current"), ("limit_in_bytes", "usage_in_bytes")
    for folder, of in itertools.product(group_folders("memory", groups, mount), names):
        limit, usage = (read_text(folder / f"memory.{name}") for name in of)
        if limit and usage and limit != "max":
            # Cached files, which the kernel drops first, count as usage.
            cached = read_values(folder / "memory.stat").get("inactive_file", 0)
            left.append(int(limit) - int(usage) + cached)
    return min(left, default=None)
