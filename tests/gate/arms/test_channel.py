"""What the gate makes of what launches say, and how long it waits for those that say nothing."""

from __future__ import annotations

import contextlib
import math
import socket
from pathlib import Path

import pytest

from perfsuite.gate.arms.arm import Arm, PairPlan
from perfsuite.gate.arms.channel import Patience, Server
from perfsuite.gate.arms.loaded import LoadLogReader


def typical_mhz(folder: Path, *clocks_mhz: float) -> tuple[float, ...]:
    """What a cell is said to have run at, where a GPU had these clocks as its turns ended."""
    folder.mkdir()
    arm = Arm(name="head", tree=folder, import_roots=(), pytest_arguments=())
    plan = PairPlan(number=1, first="head", hash_seed=1, timeout_s=60.0)
    server = Server([arm], plan, folder / "socket")
    server._clocks_mhz["head"] = [(one,) for one in clocks_mhz]
    cell = {"cell": "test_step", "outcome": "passed", "reason": None, "rounds_s": []}
    ours, theirs = socket.socketpair()
    with contextlib.closing(server), ours, theirs:
        server._waiting["head", "left"] = theirs  # the arm waits for the answer
        server._take_cell("head", {**cell, "record": None})
    return server.launches["head"].cells["test_step"].clocks_mhz


def test_a_clock_between_two_steps_of_a_gpus_clock_is_seen(tmp_path: Path) -> None:
    slower = typical_mhz(tmp_path / "slower", *[1395] * 6, *[1410] * 5, 210)
    faster = typical_mhz(tmp_path / "faster", *[1395] * 5, *[1410] * 6, 210)

    assert (slower, faster) == ((1400.625,), (1402.5,))
    assert typical_mhz(tmp_path / "one", 1980) == (1980.0,)


@pytest.mark.parametrize(
    ("turn_s", "expected"),
    [(math.inf, [0.5, 1.0, 2.0, 4.0, 8.0]), (4.0, [0.5, 1.0, 2.0, 4.5, 5.0, 6.0]), (0.25, [])],
)
def test_a_turn_is_looked_into_ever_less_often_and_a_short_one_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn_s: float, expected: list[float]
) -> None:
    arm = Arm(name="head", tree=tmp_path, import_roots=(), pytest_arguments=())
    plan = PairPlan(number=1, first="head", hash_seed=1, timeout_s=60.0)
    now_s, looks_s = [0.0], list[float]()
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(LoadLogReader, "look", lambda _: looks_s.append(now_s[0]))

    with contextlib.closing(Server([arm], plan, tmp_path / "socket")) as server:
        for quarter in range(8 * 4 + 1):  # of a second, in which a command greets
            now_s[0] = quarter / 4
            if now_s[0] % turn_s == 0:
                server._granted_s = now_s[0]
            server._look(is_idle=False)
        server._agreed = {}  # rounds begin
        server._look(is_idle=True)

    assert looks_s == expected


# What an arm tells of Python's collector: the largest and the smallest of all ranks.
USUAL = (True, 700, 10, 10, False, 0, True, 700, 10, 10, False, 0)


@pytest.mark.parametrize(
    ("told", "is_collecting"),
    [
        ([USUAL, USUAL], False),
        ([USUAL, (*USUAL[:4], True, *USUAL[5:])], True),
        ([USUAL, (False, *USUAL[1:])], True),
        ([(*USUAL[:7], 50_000, *USUAL[8:]), USUAL], True),
        ([USUAL], True),  # one arm after the other: what the second does nobody knows
        ([None, USUAL], False),  # an older base does not tell
        ([USUAL, None], False),
    ],
)
def test_the_collector_runs_in_rounds_unless_both_arms_set_it_alike(
    tmp_path: Path, told: list[tuple[int, ...] | None], is_collecting: bool
) -> None:
    names = ["base", "head"][: len(told)]
    arms = [Arm(name=name, tree=tmp_path, import_roots=(), pytest_arguments=()) for name in names]
    plan = PairPlan(number=1, first="head", hash_seed=1, timeout_s=60.0)
    server = Server(arms, plan, tmp_path / "socket")
    times = {"iterations": 3, "iteration_s": 0.01, "first_s": 1.0}

    with contextlib.closing(server):
        server._shapes = {
            name: times if one is None else {**times, "collector_state": [*one]}
            for name, one in zip(names, told, strict=True)
        }
        agreed = server._agree_on_shape(names)

    assert agreed["collecting"] is is_collecting


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
