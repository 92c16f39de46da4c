"""The host probe: what it returns, on a clock of our own."""

from __future__ import annotations

import itertools
import subprocess
import sys

from perfsuite.system.host_probe import probe_host


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


def test_the_probe_imports_nothing_heavy() -> None:
    script = (
        "import sys, perfsuite.system.host_probe\n"
        "print(sorted({'torch', 'numpy', 'scipy'} & set(sys.modules)))"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (ended.stdout, ended.stderr) == ("[]\n", "")
