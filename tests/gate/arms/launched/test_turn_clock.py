"""What a turn is charged with, and where it runs, with made-up processes, devices and garbage."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perfsuite.gate.arms.launched.turn_clock import (
    SharedCore,
    TurnClock,
    free_device_memory,
    synchronize,
)


class Launch:
    """A launch in which made-up things run beside the main thread; remembers what happens."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.started: dict[int, Any] = {}
        self.others: list[int] = []
        self.worked_s = 0.0
        self.now_s = 0.0
        self.cores: list[set[int]] = []
        self.waits = Mock()

    def processes(self) -> dict[int, Any]:
        return dict(self.started)

    def threads(self) -> list[int]:
        return self.others

    def thread_seconds(self) -> dict[int, float]:
        return {1: self.worked_s}

    def stop(self) -> None:
        self.events.append("stop")

    def resume(self) -> None:
        self.events.append("resume")

    def read(self) -> float:
        self.events.append("read")
        return self.now_s

    def clock(self, *, number: int | None = 3, collects_garbage: bool = False) -> TurnClock:
        return TurnClock(
            self.read,
            SharedCore(number, self),
            wait_for_turn=lambda: self.events.append("wait"),
            end_turn=lambda: self.events.append("done"),
            end_round=lambda: self.events.append("round"),
            collects_garbage=collects_garbage,
            waits=self.waits,
        )


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Launch:
    """A launch whose cores are made up too."""
    launch = Launch()
    pin = lambda _, cores: launch.cores.append(set(cores))  # noqa: E731
    monkeypatch.setattr(os, "sched_setaffinity", pin)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    return launch


def take_turn(clock: TurnClock, work: Callable[[], object] = lambda: None) -> float:
    began_s = clock()
    work()
    return clock() - began_s


def compute() -> None:
    """About ten milliseconds of work."""
    sum(range(500_000))


def test_other_processes_run_in_the_turn_alone(launch: Launch) -> None:
    take_turn(launch.clock())

    assert launch.events == ["stop", "wait", "resume", "read", "read", "stop", "done", "resume"]


def test_where_no_other_arm_is_in_the_cell_the_turn_is_kept_once_the_cell_is_pinned(
    launch: Launch,
) -> None:
    launch.waits = None  # type: ignore[assignment]
    clock = launch.clock()

    take_turn(clock)
    launch.events.clear()
    for _ in range(3):
        take_turn(clock)
    assert launch.cores == [{3}]
    assert launch.events == ["stop", "wait", "resume", *["read", "read", "round"] * 3]
    clock.end()
    assert launch.events[-3:] == ["stop", "done", "resume"]
    clock.end()
    assert launch.events.count("done") == 1


def test_a_serial_cell_is_pinned_once_its_first_turn_has_shown_that(launch: Launch) -> None:
    clock = launch.clock()

    take_turn(clock, compute)
    assert launch.cores == [{3}]
    take_turn(clock, compute)
    assert launch.cores == [{3}]


def test_no_turn_is_pinned_before_the_calibration_is_over(launch: Launch) -> None:
    core = SharedCore(3, launch)

    core.is_calibrating = True
    core.begin_turn()
    core.end_turn()
    assert launch.cores == []
    core.settle()
    assert launch.cores == [{3}]


def start_a_thread() -> None:
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()


def start_a_process() -> None:
    subprocess.run([sys.executable, "-S", "-c", "sum(range(500_000))"], check=True)


@pytest.mark.parametrize("work", [start_a_thread, start_a_process])
def test_a_cell_with_a_thread_or_a_process_that_ended_is_not_pinned(
    launch: Launch, work: Callable[[], None]
) -> None:
    take_turn(launch.clock(), work)

    assert launch.cores == []


def test_a_cell_that_leaves_a_thread_or_a_process_or_needs_another_core_is_not_pinned(
    launch: Launch,
) -> None:
    take_turn(launch.clock(), lambda: launch.others.append(8))
    launch.others.clear()
    take_turn(launch.clock(), lambda: launch.started.update({9: SimpleNamespace(cpu_s=0.0)}))
    take_turn(launch.clock(), lambda: launch.started.update({9: SimpleNamespace(cpu_s=5.0)}))
    take_turn(launch.clock(number=None))

    assert launch.cores == []


def test_processes_that_idle_keep_no_cell_from_its_core(launch: Launch) -> None:
    launch.started[9] = SimpleNamespace(cpu_s=5.0)

    take_turn(launch.clock())

    assert launch.cores == [{3}]


def test_a_pinned_cell_that_starts_a_thread_is_let_go_and_tells_it(launch: Launch) -> None:
    core = SharedCore(3, launch)
    core.begin_turn()
    core.end_turn()
    core.begin_turn()
    launch.others.append(8)
    core.end_turn()

    assert core.is_late
    assert launch.cores[0] == {3}
    assert launch.cores[-1] == {0, 1, 2, 3}


def test_a_cell_that_is_let_go_gets_the_cores_that_its_own_code_had_left_it(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    core = SharedCore(3, launch)
    core.begin_turn()
    core.end_turn()
    core.begin_turn()
    launch.others.append(8)
    core.end_turn()

    assert launch.cores[-1] == {2, 3}


def test_what_threads_do_in_the_other_arms_turns_is_counted(launch: Launch) -> None:
    clock = launch.clock()

    def wait() -> None:
        launch.worked_s += 0.25

    clock.wait_for_turn = wait  # the first wait is for the other arm's setup
    for _ in range(3):
        take_turn(clock)

    assert clock.background_s == 0.5
    assert clock.core.turns_s > 0


def test_waits_are_looked_at_before_processes_are_stopped_and_after_the_first_turn(
    launch: Launch,
) -> None:
    launch.started[9] = SimpleNamespace(cpu_s=0.0)
    launch.waits.end_turn.side_effect = lambda children: launch.events.append(f"look {[*children]}")
    launch.waits.begin_turn.side_effect = lambda: launch.events.append("look")
    clock = launch.clock()

    take_turn(clock)
    take_turn(clock)

    assert launch.events == [
        *("stop", "wait", "resume", "read", "read", "look [9]", "stop", "done", "resume"),
        *("stop", "wait", "look", "resume", "read", "read", "look [9]", "stop", "done", "resume"),
    ]


def make_garbage() -> None:
    gc.disable()
    for _ in range(1000):
        ring: list[Any] = []
        ring.append(ring)


def test_where_the_collector_is_off_in_rounds_garbage_costs_its_arm_the_collection(
    launch: Launch,
) -> None:
    gc.collect()
    try:
        assert take_turn(launch.clock(collects_garbage=True), make_garbage) > 0
        assert take_turn(launch.clock(collects_garbage=True)) == 0
        assert take_turn(launch.clock(), make_garbage) == 0
    finally:
        gc.enable()


class Torch:
    """A torch that says which of its two devices it waited for."""

    def __init__(self, *, is_initialized: bool) -> None:
        self.waited: list[int] = []
        self.cuda = SimpleNamespace(
            is_initialized=lambda: is_initialized,
            device_count=lambda: 2,
            synchronize=self.waited.append,
        )
        self._C = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device == 1)


def test_kernels_that_still_run_belong_to_the_turn(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = Torch(is_initialized=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch.cuda.synchronize = lambda device: launch.events.append(f"device {device}")

    take_turn(launch.clock())

    devices = ["wait", "device 1", "resume", "read", "device 1", "read", "stop"]
    assert launch.events[1:8] == devices


def test_a_process_that_never_used_a_device_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch(is_initialized=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    synchronize()
    monkeypatch.delitem(sys.modules, "torch")
    synchronize()

    assert torch.waited == []


def test_a_device_whose_context_is_broken_keeps_no_cell_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty_cache = Mock(side_effect=RuntimeError("CUDA error: device-side assert triggered"))
    cuda = SimpleNamespace(is_initialized=lambda: True, empty_cache=empty_cache)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]

    free_device_memory()

    empty_cache.assert_called_once_with()
