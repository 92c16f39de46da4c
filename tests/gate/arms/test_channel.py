"""How long the gate waits for launches that say nothing."""

from __future__ import annotations

import pytest

from perfsuite.gate.arms.channel import Patience, _middle_mean


def test_a_clock_between_two_steps_of_a_gpus_clock_is_seen() -> None:
    assert _middle_mean([1395] * 6 + [1410] * 5 + [210]) == pytest.approx(1400.0)
    assert _middle_mean([1395] * 5 + [1410] * 6 + [210]) == pytest.approx(1402.5)
    assert _middle_mean([1980.0]) == 1980.0


class Machine:
    """A clock, and what processors have done for the launches."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.spent_s = 7.0
        self.patience = Patience(10.0, lambda: self.spent_s, lambda: self.now_s)

    def wait(self, seconds: int, *, work: float = 0.0) -> str | None:
        """Why the launches are ended while so much time goes by, of which a share is work."""
        for _ in range(seconds):
            self.now_s += 1.0
            self.spent_s += work
            if (reason := self.patience.why_over()) is not None:
                return reason
        return None


def test_launches_that_say_and_do_nothing_are_ended() -> None:
    machine = Machine()

    assert machine.wait(10) is None
    assert machine.wait(2) == "no progress for 10 s"


def test_launches_that_work_may_be_silent_ten_times_as_long() -> None:
    machine = Machine()

    assert machine.wait(99, work=0.5) is None
    assert machine.wait(3, work=0.5) == "nothing but work for 100 s"


def test_a_little_work_is_none() -> None:
    assert Machine().wait(15, work=0.01) == "no progress for 10 s"


def test_what_a_launch_says_begins_the_wait_anew() -> None:
    machine = Machine()
    machine.wait(90, work=1.0)

    machine.patience.hear()

    assert machine.wait(90, work=1.0) is None
    assert machine.wait(12) == "no progress for 10 s"
