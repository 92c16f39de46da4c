"""The limits that control groups put on this process, of version 1 and 2.

A limit may stand on any group above the process, and a container shows its own group as the root
of the mount, so all folders from the group up to the root are looked at (cgroups(7)).
"""

from __future__ import annotations

from pathlib import Path

_OWN_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def cpu_quota(groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> float | None:
    """Return how many processors' worth of time the process may use; None without a limit."""
    quotas = []
    for folder in _folders("cpu", groups, mount):
        if text := read_text(folder / "cpu.max"):
            quotas.append(parse_cpu_max(text))
        quota, period = (read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota and period:
            quotas.append(parse_cpu_max(f"{quota} {period}"))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_left_bytes(groups: Path = _OWN_GROUPS, mount: Path = _MOUNT) -> int | None:
    """Return how many more bytes the process's groups may use; None without a limit."""
    left = []
    for folder in _folders("memory", groups, mount):
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, usage = read_text(folder / limit_name), read_text(folder / usage_name)
            if limit and usage and limit != "max":
                reclaimable = parse_inactive_file(read_text(folder / "memory.stat") or "")
                left.append(int(limit) - int(usage) + reclaimable)
    return min(left, default=None)


def parse_cpu_max(text: str) -> float | None:
    """Return the processors that a quota and a period, both in microseconds, come to.

    >>> parse_cpu_max("150000 100000"), parse_cpu_max("max 100000"), parse_cpu_max("-1 100000")
    (1.5, None, None)
    """
    quota, period = text.split()
    return None if quota in ("max", "-1") else int(quota) / int(period)


def parse_inactive_file(memory_stat: str) -> int:
    r"""Return the bytes of cached files that the kernel drops first; they count as usage.

    >>> parse_inactive_file("anon 4096\ninactive_file 8192\n")
    8192
    """
    values = dict(line.split(maxsplit=1) for line in memory_stat.splitlines())
    return int(values.get("total_inactive_file") or values.get("inactive_file") or 0)


def _folders(controller: str, groups: Path, mount: Path) -> list[Path]:
    """Return the folders of the process's group and of all groups above it."""
    folders: list[Path] = []
    for line in (read_text(groups) or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base = mount
        elif controller in controllers.split(","):
            base = mount / controller
        else:
            continue
        path = base / group.lstrip("/")
        folders += [path, *(parent for parent in path.parents if parent.is_relative_to(base))]
    return folders


def read_text(path: Path) -> str | None:
    """Return a kernel file's content without surrounding blanks, None where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def parse_cpu_times(stat: str) -> tuple[int, int]:
    r"""Return (all, stolen) clock ticks of all processors since boot from /proc/stat (proc(5)).

    >>> parse_cpu_times("cpu  70 0 20 900 5 0 1 4 60 0\ncpu0 70 0 20 900 5 0 1 4 60 0\n")
    (1000, 4)
    """
    # user, nice, system, idle, iowait, irq, softirq, steal; guest times are part of user and nice.
    ticks = [int(field) for field in stat.partition("\n")[0].split()[1:9]]
    return sum(ticks), ticks[7]
