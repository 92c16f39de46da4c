from __future__ import annotations

import contextlib

import pytest
import torch

from perfsuite.errors import PerfsuiteError
from perfsuite.worker.measure.stages import StageClock, StageMarks

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class FakeHost:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeDevice:
    """A stream that counts its events, which remember when they were recorded."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_events = 0

    def make_event(self, of: torch.device) -> FakeEvent:
        assert of == CUDA
        self.num_events += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = self._device.now_ms

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at_ms is not None
        assert end.at_ms is not None
        return end.at_ms - self.at_ms


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def test_a_stage_entered_again_adds_up(host):
    stage = StageClock(CPU, clock=host)

    for seconds in (1.0, 0.5):
        with stage("forward"):
            host.now_s += seconds
        host.now_s += 7.0

    assert stage.collect() == {"forward": 1.5}


def test_collecting_starts_anew_and_names_only_what_was_entered(host):
    stage = StageClock(CPU, clock=host)
    with stage("load"):
        host.now_s += 1.0
    stage.collect()

    with stage("backward"):
        pass

    assert stage.collect() == {"backward": 0.0}
    assert stage.collect() == {}


def test_the_observer_hears_of_a_stage_before_its_time_starts(host):
    heard = []

    def on_enter(name):
        heard.append(name)
        host.now_s += 3.0

    stage = StageClock(CPU, clock=host, on_enter=on_enter)

    with stage("load"):
        host.now_s += 1.0
    with stage("forward"):
        host.now_s += 2.0

    assert heard == ["load", "forward"]
    assert stage.collect() == {"load": 1.0, "forward": 2.0}


def test_a_stage_that_raises_is_left(host):
    stage = StageClock(CPU, clock=host)

    with contextlib.suppress(ZeroDivisionError), stage("forward"):
        host.now_s += 1.0
        raise ZeroDivisionError

    with stage("backward"):
        host.now_s += 2.0
    assert stage.collect() == {"forward": 1.0, "backward": 2.0}


def test_stages_do_not_nest():
    stage = StageClock(CPU)

    with pytest.raises(PerfsuiteError) as caught, stage("evaluation"), stage("forward"):
        pass

    assert str(caught.value) == (
        "stage 'forward' was entered inside of stage 'evaluation'; stages do not nest, "
        "so leave 'evaluation' first"
    )


def test_an_unknown_stage_is_refused_by_name():
    with pytest.raises(PerfsuiteError) as caught:
        StageClock(CPU)("foward")

    assert str(caught.value) == (
        "stage 'foward' is not known; use one of load, forward, backward, optimizer, evaluation"
    )


def test_on_a_gpu_loading_takes_host_time_and_the_rest_device_time(host, device):
    stage = StageClock(CUDA, clock=host, make_event=device.make_event)

    for name in ("load", "forward", "backward", "optimizer", "evaluation"):
        with stage(name):
            host.now_s += 1.0
            device.now_ms += 250.0

    assert stage.collect() == {
        "load": 1.0,
        "forward": 0.25,
        "backward": 0.25,
        "optimizer": 0.25,
        "evaluation": 0.25,
    }


def test_on_a_gpu_spans_and_steps_are_the_devices_and_loading_is_the_hosts(host, device):
    stage = StageClock(CUDA, clock=host, make_event=device.make_event)

    for _ in range(2):
        stage.mark_border()
        with stage("load"):
            host.now_s += 1.0
        device.now_ms += 500.0
        with stage("forward"):
            device.now_ms += 250.0
    stage.mark_border()

    assert stage.steps_s() == (0.75, 0.75)
    assert stage.spans() == (
        *(("load", 0.0, 1.0), ("forward", 0.5, 0.75)),
        *(("load", 1.0, 2.0), ("forward", 1.25, 1.5)),
    )


def test_events_are_used_again_after_each_collection(device):
    stage = StageClock(CUDA, make_event=device.make_event)

    for _ in range(3):
        for milliseconds in (1.0, 2.0):
            with stage("forward"):
                device.now_ms += milliseconds
        assert stage.collect() == {"forward": pytest.approx(3e-3)}

    assert device.num_events == 4


def test_marks_tell_which_stage_is_entered_and_time_none():
    heard = []
    stage = StageMarks(CPU, on_enter=heard.append)

    for name in ("load", "forward"):
        with stage(name):
            pass

    assert heard == ["load", "forward"]
    assert stage.collect() == {}
