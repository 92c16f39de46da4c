"""A session that waits says so before it waits, however its output is captured."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tiny_suites import FEW_PLUGINS

HOLDER = """
from perfsuite.system.timing_lock import TimingLock

lock = TimingLock(wait_s=0, say=print)
lock.acquire()
print("held", flush=True)
input()
"""
# What a timed cell does first, without the ranks that it starts then.
WAITING = """
    from perfsuite.plugin.fixtures import RUNNER

    def test_cell(request, capsys):
        request.config.stash[RUNNER]().session.hold_machine()

    def test_next():
        pass
"""
CELL = """
    def test_cell(all_reduce_benchmark):
        all_reduce_benchmark("ddp:2", 1024)
"""


@pytest.fixture
def holder(pytester: pytest.Pytester) -> Iterator[subprocess.Popen[str]]:
    """A session that holds the machine until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=pytester.path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def wait_until_seen(
    pytester: pytest.Pytester, holder: subprocess.Popen[str], *arguments: str
) -> str:
    """Return what a session says that begins while the machine is held.

    The machine is free only once the session's line was seen: without the line it gives up, in 12.
    """
    second = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--perf-wait=60", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=pytester.path,
    )
    assert second.stdout is not None
    said = ""
    expected = (
        f"perfsuite: another timing session (process {holder.pid}) holds this machine; waiting for "
        "it, 60 s at most (pytest: --perf-wait=0 would not)\n"
    )
    while not said.endswith(expected):
        line = second.stdout.readline()
        assert line, said
        said += line
    holder.communicate("\n")
    said += second.communicate()[0]
    assert second.returncode == 0, said
    assert said.count(expected) == 1
    return said


@pytest.mark.parametrize("capture", ["--capture=fd", "--capture=sys", "--capture=no"])
@pytest.mark.parametrize("verbosity", ["-v", "--color=no", "-q", "-qq"])
def test_a_session_that_waits_for_the_machine_says_so_before_it_waits(
    pytester: pytest.Pytester, holder: subprocess.Popen[str], verbosity: str, capture: str
) -> None:
    pytester.makepyfile(test_inner=WAITING)

    wait_until_seen(pytester, holder, verbosity, capture, *FEW_PLUGINS[2:])


SKIPPED_FIRST = """
    import pytest

    @pytest.mark.skip
    def test_first(all_reduce_benchmark):
        pass
"""


def test_no_time_out_of_a_test_counts_the_waiting_and_no_file_changes_meanwhile(
    pytester: pytest.Pytester, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_inner=SKIPPED_FIRST)
    kept = pytester.path / "results" / "cells.jsonl"
    kept.parent.mkdir()
    kept.write_text("of the session that holds the machine\n")
    # The holder ends only where its own lines are still there, and later than a timer would.
    end = holder.communicate

    def look_and_end(text: str | None = None) -> tuple[str, str]:
        time.sleep(2)
        assert kept.read_text() == "of the session that holds the machine\n"
        return end(text)

    monkeypatch.setattr(holder, "communicate", look_and_end)
    timer = "-o", "faulthandler_timeout=1.5", "-o", "faulthandler_exit_on_timeout=true"

    said = wait_until_seen(pytester, holder, "-q", "--perf-device=cpu", *timer)

    assert "1 skipped" in said


def test_a_timed_cell_waits_and_says_so(
    pytester: pytest.Pytester, holder: subprocess.Popen[str]
) -> None:
    pytester.makepyfile(test_inner=CELL)

    said = wait_until_seen(pytester, holder, "-q", "--perf-device=cpu", "--perf-rounds=1")

    assert "1 passed" in said


@pytest.mark.usefixtures("holder")
def test_a_gate_without_a_cell_does_not_wait(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_inner=CELL)

    gated = pytester.runpytest_inprocess(
        *("-p", "no:cacheprovider", "-k", "nothing", "--benchmark-compare", "--perf-wait=0"),
        "--perf-device=cpu",
    )

    assert gated.ret == 12  # outside of git there is no base
    gated.stdout.no_fnmatch_line("*holds this machine*")
