"""pytest-benchmark as the recorder of what ranks measured.

Its own fixture, table, JSON and storage stay in use; only its clock is replaced, by one that hands
out the durations that the ranks reported. Must not know how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

_PLUGIN_NAME = "pytest-benchmark"


class RankClock:
    """A clock that is read in pairs and whose pairs differ by exactly what was reported.

    The first read of a pair gives 0, the second what was reported between: no sum is formed, so the
    stored numbers are bit for bit the reported ones. The fixed names keep the JSON the same from
    run to run, where an object's representation holds an address.
    """

    def __init__(self) -> None:
        self.__name__ = "rank_clock"
        self.__qualname__ = "rank_clock"
        self._pending_s = 0.0

    def __call__(self) -> float:
        """Return what was reported since the last read, 0 at the start of a pair."""
        pending_s, self._pending_s = self._pending_s, 0.0
        return pending_s

    def report(self, duration_s: float) -> None:
        """Let the running measurement have taken `duration_s` seconds."""
        self._pending_s = duration_s


def use_rank_clock(item: pytest.Item) -> None:
    """Give a test's benchmark fixture a clock of its own, keeping the marker options it has."""
    if not item.config.pluginmanager.has_plugin(_PLUGIN_NAME):
        return
    options: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("benchmark"))):
        options.update(marker.kwargs)
    item.add_marker(pytest.mark.benchmark(**{**options, "timer": RankClock()}), append=False)


def replay(benchmark: Any, step_times_s: Sequence[float], clock: RankClock) -> None:
    """Have pytest-benchmark record exactly `step_times_s` (seconds), one round each.

    Args:
        benchmark: Its `benchmark` fixture, made with `clock`.
        step_times_s: What to record.
        clock: The clock of that fixture.
    """
    remaining = iter(step_times_s)

    def report_next() -> None:
        # With --benchmark-cprofile there is one call more than rounds, which is not recorded.
        clock.report(next(remaining, 0.0))

    benchmark.pedantic(report_next, rounds=len(step_times_s), iterations=1)


def clock_of(item: pytest.Item) -> RankClock:
    """Return the clock that `use_rank_clock` gave the test."""
    marker = item.get_closest_marker("benchmark")
    assert marker is not None
    clock: RankClock = marker.kwargs["timer"]
    return clock


def is_benchmark(item: pytest.Item) -> bool:
    """Whether a test uses pytest-benchmark's fixture, directly or through one of ours."""
    return "benchmark" in getattr(item, "fixturenames", ())


def is_recorded(item: pytest.Item) -> bool:
    """Whether pytest-benchmark keeps what it is told: not with xdist or --benchmark-disable."""
    session: Any = item.config.pluginmanager.get_plugin(_PLUGIN_NAME)
    return session is not None and not session.disabled and not session.skip


def expect_no_record(item: pytest.Item) -> None:
    """Keep pytest-benchmark from warning that a cell which failed or was skipped has no times."""
    benchmark: Any = getattr(item, "funcargs", {}).get("benchmark")
    if benchmark is not None:
        benchmark.skipped = True


def is_comparing(config: pytest.Config) -> bool:
    """Whether --benchmark-compare was given."""
    return bool(config.getoption("benchmark_compare", None))
