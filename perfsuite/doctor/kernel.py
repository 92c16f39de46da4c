"""What the kernel tells in files under /proc and /sys. Must not judge any of it."""

from __future__ import annotations

from pathlib import Path


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
