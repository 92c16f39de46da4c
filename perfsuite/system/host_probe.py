"""How fast the host is just now: two fixed pieces of work that no change of the code can touch.

Run at each session and stored beside it, they separate a slower machine from slower code. Imports
neither code under test nor anything slow.
"""

import statistics
import time
from collections.abc import Callable
from typing import Final

# Each piece takes 20 to 50 ms on a server of 2020 to 2025, long against the clock and the
# scheduler's tick. A change of a number here makes all stored probes useless.
_NUM_ADDITIONS: Final = 600_000
# Twice this much memory is touched, which is more than the last-level cache of one core.
_COPIED_BYTES: Final = 64 * 2**20
_NUM_COPIES: Final = 3
# The median of so many: a preempted one does not show, a slower host does.
_NUM_REPEATS: Final = 7


def probe_host(clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return seconds of each piece of work, by name; takes about half a second.

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
        durations_s = []
        for _ in range(_NUM_REPEATS):
            start_s = clock()
            work()
            durations_s.append(clock() - start_s)
        return statistics.median(durations_s)

    return {"interpreter": median_s(add), "memory": median_s(copy)}
