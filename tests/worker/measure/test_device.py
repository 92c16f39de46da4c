"""What is asked of an accelerator is asked of the one that trains, not of the one that is set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfsuite.worker.measure.device import make_event, synchronize


class Event:
    """An event that keeps the streams it was recorded in."""

    def __init__(self, *, enable_timing: bool) -> None:
        self.has_timing = enable_timing
        self.streams: list[str] = []

    def record(self, stream: str = "of the device that is set") -> None:
        self.streams.append(stream)


def test_an_event_is_recorded_in_the_current_stream_of_its_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams, asked = {1: "first"}, []

    def current_stream(device: torch.device) -> str:
        asked.append(streams[device.index])
        return asked[-1]

    module = SimpleNamespace(Event=Event, current_stream=current_stream)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    address = lambda index: id(streams[index])  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", address, raising=False)
    event: Any = make_event(torch.device("cuda", 1))

    event.record()
    event.record()
    streams[1] = "another"
    event.record()

    assert event.has_timing
    assert event.streams == ["first", "first", "another"]
    assert asked == ["first", "another"]  # torch takes longer for a stream than for an event


def test_all_devices_that_the_process_uses_are_waited_for_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[int] = []
    module = SimpleNamespace(
        device_count=lambda: 4,
        synchronize=lambda device: waited.append(getattr(device, "index", device)),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(
        torch._C, "_cuda_hasPrimaryContext", lambda number: number in (0, 2), raising=False
    )

    synchronize(torch.device("cuda", 0))

    assert waited == [0, 2]
