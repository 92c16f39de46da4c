"""pytest-benchmark as the recorder of what ranks measured; every pytest session imports this.

Its own fixture, table, JSON and storage stay in use. It has no hooks for what is changed here (its
clock, when it looks for stored runs, where and how it stores its own), so attributes of its session
and of its fixture are set (pytest-benchmark 5.3). What launches change: `arm_plugin`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

_PLUGIN_NAME = "pytest-benchmark"
# The options' values while pytest-benchmark reads them; a value that a conftest sets stays.
# pytest-benchmark makes the folder that it is given: this one exists, and holds no runs.
_NO_STORAGE = "file://."
_NO_COMPARISON: list[str] = []
# The attributes of its session that make it write or compare, with values that make it do neither.
_WRITING: dict[str, bool | None] = {
    **dict.fromkeys(("json", "save", "compare_fail"), None),
    **dict.fromkeys(("autosave", "histogram", "cprofile_dump"), False),
}


class Given(NamedTuple):
    """What the options say of stored runs; None where pytest-benchmark is not loaded."""

    compare: Any
    storage: str | None


def withhold_storage(config: pytest.Config) -> Given:
    """Keep pytest-benchmark from its runs; where they are is known when collection ends."""
    option = config.getoption
    given = Given(option("benchmark_compare", None), option("benchmark_storage", None))
    if given.storage is not None:
        config.option.benchmark_compare = _NO_COMPARISON
        config.option.benchmark_storage = _NO_STORAGE
    return given


def give_options_back(config: pytest.Config, given: Given) -> Given:
    """Show, and return, the options as they were given, or as a conftest has set them meanwhile."""
    if given.storage is None:
        return given
    option = config.option
    if option.benchmark_compare is _NO_COMPARISON:
        option.benchmark_compare = given.compare
    if option.benchmark_storage is _NO_STORAGE:
        option.benchmark_storage = given.storage
    return Given(option.benchmark_compare, option.benchmark_storage)


def session_of(config: pytest.Config) -> Any:
    """Return pytest-benchmark's own session; None where it is not loaded."""
    return config.pluginmanager.get_plugin(_PLUGIN_NAME)


def open_storage(config: pytest.Config, storage: str) -> Any:
    """Return the storage that an option's value names; raises a UsageError for an unknown value."""
    from argparse import ArgumentTypeError

    from pytest_benchmark.utils import load_storage

    session = session_of(config)
    try:
        return load_storage(  # type: ignore[no-untyped-call]
            storage,
            logger=session.logger,
            default_machine_id=session.machine_id,
            netrc=config.getoption("benchmark_netrc"),
        )
    except ArgumentTypeError as error:
        raise pytest.UsageError(str(error)) from error


def write_nothing(config: pytest.Config) -> None:
    """Have pytest-benchmark write no file, whatever the options say."""
    if (session := session_of(config)) is not None:
        vars(session).update(_WRITING)


def benchmarks_of(config: pytest.Config) -> Sequence[Any]:
    """Return what pytest-benchmark has timed so far."""
    return getattr(session_of(config), "benchmarks", ())


def times_of(item: pytest.Item) -> tuple[float, ...]:
    """Return the seconds of each round that a test has timed, by iteration."""
    name, timed = item.nodeid, benchmarks_of(item.config)
    return tuple(seconds for one in timed if one.fullname == name for seconds in one.stats.data)


# What the clock of a test that measures through one of our fixtures shows next.
CLOCK = pytest.StashKey[list[float]]()


def use_rank_clock(item: pytest.Item) -> None:
    """Give a test's benchmark fixture a clock of its own, keeping the marker options it has."""
    if not item.config.pluginmanager.has_plugin(_PLUGIN_NAME):
        return
    marker = item.get_closest_marker("benchmark")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    item.stash[CLOCK] = reported = list[float]()

    # It is read in pairs: it shows 0, and then what was reported between. No sum is formed, so the
    # stored numbers are bit for bit the reported ones.
    def rank_clock() -> float:
        return reported.pop() if reported else 0.0

    item.add_marker(pytest.mark.benchmark(**options | {"timer": rank_clock}), append=False)


def replay(benchmark: Any, step_times_s: Sequence[float], reported: list[float]) -> None:
    """Have a fixture with the clock of `reported` record exactly these seconds, one round each."""
    remaining = iter(step_times_s)

    def report_next() -> None:
        # With --benchmark-cprofile there is one more call than rounds, and it is not recorded.
        reported[:] = [next(remaining, 0.0)]

    benchmark.pedantic(report_next, rounds=len(step_times_s), iterations=1)


def is_benchmark(item: pytest.Item) -> bool:
    """Whether a test uses pytest-benchmark's fixture, directly or through one of ours."""
    return "benchmark" in getattr(item, "fixturenames", ())


def is_recorded(item: pytest.Item) -> bool:
    """Whether pytest-benchmark keeps times: not with xdist or --benchmark-disable."""
    session = session_of(item.config)
    return session is not None and not session.disabled and not session.skip


def expect_no_record(benchmark: Any) -> None:
    """Keep pytest-benchmark from warning that a cell which failed or was skipped has no times."""
    if benchmark is not None:
        benchmark.skipped = True
