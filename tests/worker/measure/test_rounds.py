from __future__ import annotations

import gc
import os
import weakref
from contextlib import nullcontext
from fractions import Fraction

import pytest
import torch

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.messages import RoundTimes
from perfsuite.worker.measure import clock
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.measure.rounds import (
    LEAST_ON_ACCELERATOR,
    choose_num_iterations,
    measure_rounds,
)
from perfsuite.worker.measure.stages import StageClock


class FakeHost:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


class Queue:
    """A device that works on while the host goes on; `record` is an event of it."""

    def __init__(self, host: FakeHost) -> None:
        self.num_synchronized = 0
        self._host = host
        self._done_s = 0.0

    def run(self, seconds: float) -> None:
        self._done_s = max(self._done_s, self._host.now_s) + seconds

    def synchronize(self) -> None:
        self.num_synchronized += 1
        self._host.now_s = max(self._host.now_s, self._done_s)

    def at_s(self) -> float:
        return max(self._done_s, self._host.now_s)


class QueueEvent:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = self._queue.at_s()

    def elapsed_time(self, end: QueueEvent) -> float:
        return 1e3 * (end.at_s - self.at_s)


def on_queue(queue: Queue) -> StageClock:
    return StageClock(torch.device("cuda"), make_event=lambda _: QueueEvent(queue))


def measure_queue(host_s: float, device_s: float, *, waits: bool = False, **changes):
    """The seconds of an iteration in each round on a device with a queue, and the queue."""
    host = changes.pop("host", None) or FakeHost()
    queue = Queue(host)

    def iterate(stage):
        host.spend(host_s)
        queue.run(device_s)
        if waits:
            queue.synchronize()

    num_iterations = choose_num_iterations(
        max(host_s, device_s), steps_per_epoch=None, least=LEAST_ON_ACCELERATOR
    )
    rounds = measure(
        host,
        iterate,
        num_iterations=num_iterations,
        synchronize=queue.synchronize,
        stages=on_queue(queue),
        run_up=lambda name: nullcontext(),
        **changes,
    )
    return [times.duration_s / num_iterations for times in rounds], queue


def measure(host: FakeHost, iterate, **changes):
    stages = changes.pop("stages", None) or StageClock(torch.device("cpu"), clock=host)
    arguments = {
        "num_rounds": 2,
        "num_iterations": 3,
        "stages": stages,
        "start_together": lambda: None,
        "synchronize": lambda: None,
        "after_round": lambda: None,
        "clock": host,
    }
    rounds: list[RoundTimes] = []
    run_iterations(measure_rounds(rounds, **(arguments | changes)), iterate)
    return rounds


def test_a_round_lasts_from_the_common_start_to_the_last_synchronisation():
    host = FakeHost()

    rounds = measure(
        host,
        lambda stage: host.spend(1.0),
        start_together=lambda: host.spend(100.0),
        synchronize=lambda: host.spend(0.5),
        after_round=lambda: host.spend(1000.0),
    )

    assert rounds == [RoundTimes(duration_s=3.5, stages_s={}, steps_s=(1.0, 1.0, 1.0))] * 2


def test_each_round_has_its_own_stages_and_none_of_the_warm_up():
    host = FakeHost()
    stages = StageClock(torch.device("cpu"), clock=host)
    with stages("load"):
        host.spend(50.0)
    durations_s = iter([1.0, 2.0])

    def iterate(stage):
        with stage("forward"):
            host.spend(next(durations_s))

    rounds = measure(host, iterate, stages=stages, num_iterations=1)

    assert [times.stages_s for times in rounds] == [{"forward": 1.0}, {"forward": 2.0}]


def test_rounds_keep_what_they_passed_in_order_until_there_is_enough():
    host = FakeHost()

    def iterate(stage):
        host.spend(0.5)
        with stage("load"):
            host.spend(2.0)
        with stage("forward"):
            host.spend(1.0)

    first, second = measure(host, iterate, num_iterations=1, most_spans=1)

    assert first.spans == (
        *(("other", 0.0, 0.5), ("load", 0.5, 2.5), ("other", 2.5, 2.5)),
        *(("forward", 2.5, 3.5), ("other", 3.5, 3.5)),
    )
    assert second.spans == ()


def test_the_ranks_start_together_before_the_device_is_synchronised():
    events: list[object] = []

    measure(
        FakeHost(),
        lambda stage: events.append("iterate"),
        start_together=lambda: events.append("together"),
        synchronize=lambda: events.append("synchronize"),
        after_round=lambda: events.append("after"),
    )

    one_round = ["together", "synchronize", "iterate", "iterate", "iterate", "synchronize"]
    assert events == ["synchronize", *one_round, "after", *one_round, "after"]


def test_garbage_is_collected_between_rounds_and_never_inside():
    class Node:
        pass

    alive_in_round = []
    references = []

    def iterate(stage):
        node = Node()
        node.itself = node
        references.append(weakref.ref(node))
        alive_in_round.append((gc.isenabled(), sum(ref() is not None for ref in references)))

    measure(FakeHost(), iterate)

    assert alive_in_round == [(False, 1), (False, 2), (False, 3)] * 2


def test_what_the_garbage_of_a_round_costs_the_collector_is_in_its_time(monkeypatch):
    host = FakeHost()
    # Objects found and seconds: before the first round, then twice where there was garbage.
    collections = iter([(7, 100.0), (5, 2.0), (0, 0.5), (0, 0.5)])

    def collect():
        found, seconds = next(collections)
        host.spend(seconds)
        return found

    monkeypatch.setattr(gc, "collect", collect)

    rounds = measure(host, lambda stage: host.spend(1.0))

    assert [times.duration_s for times in rounds] == [3.0 + 2.0 - 0.5, 3.0]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_in_collecting_rounds_the_collector_is_as_the_code_has_set_it(monkeypatch, is_enabled):
    host, states = FakeHost(), []
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("the code does not collect"))
    num_frozen = gc.get_freeze_count()

    def iterate(stage):
        states.append((gc.isenabled(), gc.get_freeze_count() > num_frozen))
        host.spend(1.0)

    try:
        if not is_enabled:
            gc.disable()
        rounds = measure(host, iterate, collecting=True)
    finally:
        gc.enable()

    assert states == [(is_enabled, False)] * 6
    assert [times.duration_s for times in rounds] == [3.0, 3.0]


@pytest.mark.parametrize(("host_s", "device_s"), [(0.006, 0.010), (0.010, 0.006), (0.060, 0.1)])
def test_a_queue_is_timed_as_training_runs_it_by_the_slower_of_host_and_device(host_s, device_s):
    steps_s, _ = measure_queue(host_s, device_s)

    assert steps_s == pytest.approx([max(host_s, device_s)] * 2)


@pytest.mark.parametrize("beside_s", [0.010, 0.030])
def test_work_in_a_stream_of_its_own_is_in_the_time(beside_s):
    host = FakeHost()
    queue, beside = Queue(host), Queue(host)

    def iterate(stage):
        queue.run(0.0003)
        beside.run(beside_s)

    def synchronize():
        queue.synchronize()
        beside.synchronize()

    rounds = measure(
        host,
        iterate,
        num_iterations=8,
        synchronize=synchronize,
        stages=on_queue(queue),
        run_up=lambda name: nullcontext(),
    )

    assert [times.duration_s / 8 for times in rounds] == pytest.approx([beside_s] * 2, rel=0.02)


def test_a_step_that_waits_for_the_device_is_slower_by_all_that_it_loses():
    steps_s, _ = measure_queue(0.006, 0.010, waits=True)

    assert steps_s == pytest.approx([0.016] * 2)


def test_an_iteration_before_each_round_of_a_queue_has_a_stage_of_its_own():
    stages = []
    host = FakeHost()
    queue = Queue(host)

    def run_up(name):
        raise AssertionError(name)

    measure(host, stages.append, num_iterations=2, stages=on_queue(queue), run_up=run_up)

    assert [stage is run_up for stage in stages] == [True, False, False] * 2


class TickingHost(FakeHost):
    """Its clock moves by a microsecond each time that it is read."""

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s


def test_a_slowdown_is_exact_and_waits_for_the_device_no_more_often():
    plain_s, queue = measure_queue(0.006, 0.010, host=TickingHost())
    slower_s, slowed = measure_queue(0.006, 0.010, host=TickingHost(), slowdown=0.05)

    assert slower_s == pytest.approx([1.05 * seconds for seconds in plain_s], rel=1e-4)
    assert slowed.num_synchronized == queue.num_synchronized
    host = TickingHost()
    on_cpu = measure(host, lambda stage: host.spend(1.0), slowdown=0.05)
    assert [times.duration_s for times in on_cpu] == pytest.approx([3.15] * 2, rel=1e-4)


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("is_users", [True, False])
def test_a_collection_that_the_code_asks_for_looks_at_all_that_it_has_not_frozen(
    monkeypatch, collecting, is_users
):
    class Node:
        pass

    seen = []

    def iterate(stage):
        node = Node()
        node.itself = node
        seen.append(weakref.ref(node))
        del node
        gc.freeze()  # as an earlier round's end would
        gc.collect()

    try:
        gc.unfreeze()
        clock.freeze_loaded()
        many = [[number] for number in range(5_000)]
        if is_users:
            gc.freeze()
        measure(FakeHost(), iterate, collecting=collecting)
        assert len(many) == 5_000
        assert [ref() is not None for ref in seen] == [is_users] * 6
        assert clock._watch not in gc.callbacks
    finally:
        gc.unfreeze()
        clock.freeze_loaded()


@pytest.mark.parametrize("is_users", [True, False])
def test_what_is_frozen_is_known_without_counting_it_which_takes_30_ms(monkeypatch, is_users):
    def count():
        raise AssertionError("counted")

    states = []
    try:
        gc.unfreeze()
        clock.freeze_loaded()
        if is_users:
            gc.freeze()
        monkeypatch.setattr(gc, "get_freeze_count", count)
        measure(FakeHost(), lambda stage: states.append(clock.user_has_frozen()))
        states.append(clock.user_has_frozen())
        gc.unfreeze()
        states.append(clock.user_has_frozen())
    finally:
        gc.unfreeze()
        clock.freeze_loaded()

    assert states == [is_users] * 7 + [False]


def test_a_fork_of_a_process_that_froze_nothing_touches_none_of_its_objects(monkeypatch):
    def look():
        raise AssertionError("copies all memory that parent and fork share")

    try:
        gc.unfreeze()
        clock.freeze_loaded()
        with clock.whole_heap():
            gc.get_objects()  # which thaws
        monkeypatch.setitem(clock._LOOKS, "get_objects", look)
        assert not clock.user_has_frozen()
    finally:
        monkeypatch.undo()
        clock.freeze_loaded()


def test_code_that_looks_at_all_objects_sees_those_that_were_loaded():
    class Node:
        pass

    kept, seen, alive = [Node()], [], []

    def iterate(stage):
        node = Node()
        node.itself = node
        alive.append(weakref.ref(node))
        looked = gc.get_objects(), gc.get_referrers(kept[0])
        seen.append(tuple(any(one is kept for one in found) for found in looked))

    looks = gc.get_objects, gc.get_referrers
    try:
        gc.unfreeze()
        clock.freeze_loaded()
        measure(FakeHost(), iterate)
        assert seen == [(True, True)] * 6
        assert [ref() for ref in alive] == [None] * 6
        assert (gc.get_objects, gc.get_referrers) == looks
    finally:
        gc.unfreeze()
        clock.freeze_loaded()


@pytest.mark.parametrize("is_enabled", [True, False])
@pytest.mark.parametrize("is_users", [True, False])
def test_a_loader_worker_that_starts_in_a_round_has_the_collector_as_the_code_has_set_it(
    is_enabled, is_users
):
    seen = []

    def iterate(stage):
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, bytes([gc.isenabled(), gc.get_freeze_count() > 0]))
            os._exit(0)
        os.wait()
        seen.append(tuple(os.read(read, 2)))
        os.close(read)
        os.close(write)

    many = [[number] for number in range(5_000)]
    try:
        gc.unfreeze()
        clock.freeze_loaded()
        many += [[number] for number in range(5_000)]
        if is_users:
            gc.freeze()
        if not is_enabled:
            gc.disable()
        measure(FakeHost(), iterate)
        assert seen == [(is_enabled, is_users)] * 6
        assert len(many) == 10_000
    finally:
        gc.enable()
        gc.unfreeze()
        clock.freeze_loaded()


def test_callbacks_that_the_code_removes_are_removed():
    def iterate(stage):
        gc.callbacks.clear()

    kept = [*gc.callbacks]
    try:
        measure(FakeHost(), iterate)
        assert gc.callbacks == []
    finally:
        gc.callbacks[:] = kept


@pytest.mark.parametrize("was_frozen", [True, False])
@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_left_as_it_was_when_an_iteration_fails(was_enabled, was_frozen):
    def fail(stage):
        raise ZeroDivisionError

    try:
        if not was_enabled:
            gc.disable()
        gc.unfreeze()
        if was_frozen:
            clock.freeze_loaded()
        with pytest.raises(ZeroDivisionError):
            measure(FakeHost(), fail)
        assert gc.isenabled() is was_enabled
        assert (gc.get_freeze_count() > 0) is was_frozen
    finally:
        gc.enable()
        gc.unfreeze()
        clock.freeze_loaded()


@pytest.mark.parametrize(
    ("iteration_s", "steps_per_epoch", "expected"),
    [
        (0.050, None, 1),
        (0.049, None, 2),
        (10.0, None, 1),
        (0.0125, None, 4),
        (0.002, None, 32),
        (1e-6, None, 65536),
        (0.002, 64, 32),
        (0.002, 63, 63),
        (0.002, 32, 32),
        (0.002, 20, 40),
        (0.002, 1, 32),
        (10.0, 1, 1),
        # An epoch ends within a step: exact where that is short, else the nearest.
        (0.002, Fraction(10, 4), 35),
        (0.002, Fraction(937, 16), 59),
        (0.002, Fraction(1023, 16), 64),
        (0.002, Fraction(1025, 16), 32),
        (10.0, Fraction(3, 4), 2),
        (10.0, Fraction(1, 4), 1),
    ],
)
def test_a_round_is_a_power_of_two_or_whole_epochs(iteration_s, steps_per_epoch, expected):
    assert choose_num_iterations(iteration_s, steps_per_epoch=steps_per_epoch) == expected


def test_a_round_on_an_accelerator_lets_the_host_run_ahead():
    assert choose_num_iterations(10.0, steps_per_epoch=None, least=LEAST_ON_ACCELERATOR) == 8
    assert choose_num_iterations(10.0, steps_per_epoch=5, least=LEAST_ON_ACCELERATOR) == 10
    assert choose_num_iterations(0.001, steps_per_epoch=None, least=LEAST_ON_ACCELERATOR) == 64


@pytest.mark.parametrize("iteration_s", [0.0, -1.0, float("inf"), float("nan")])
def test_an_iteration_without_a_duration_cannot_be_timed(iteration_s):
    with pytest.raises(PerfsuiteError) as caught:
        choose_num_iterations(iteration_s, steps_per_epoch=None)

    assert str(caught.value) == (
        f"an iteration of {iteration_s} s cannot be timed in rounds; "
        "it must take a positive, finite number of seconds"
    )
