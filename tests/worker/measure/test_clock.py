"""The clock of a profile: it waits for the device, and does not move while it is held."""

from __future__ import annotations

import torch

from perfsuite.worker.measure.clock import DeviceClock


def test_no_time_passes_while_the_clock_is_held():
    times_s = iter([10.0, 11.0, 15.0, 17.0])
    clock = DeviceClock(torch.device("cpu"), read=lambda: next(times_s))

    began_s = clock()
    with clock.held():
        pass

    assert clock() - began_s == 3.0


def test_a_gpu_is_waited_for_before_each_reading(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append(str(device)))
    clock = DeviceClock(torch.device("cuda:1"), read=lambda: float(len(done)))

    assert (clock(), clock()) == (1.0, 2.0)
    assert done == ["cuda:1", "cuda:1"]
