"""The probe of a device, on a CPU and on a queue that is played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from perfsuite.worker.measure import device

NAMES = ["GPU matmul", "GPU memory", "GPU link", "GPU launch"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device, "_SIZE", 8)
    monkeypatch.setattr(device, "_COPIED_BYTES", 64)


def test_each_piece_of_work_takes_its_time() -> None:
    found = device.probe_device("cpu")

    assert list(found) == NAMES
    assert all(seconds > 0 for seconds in found.values())


def test_the_time_of_what_is_queued_counts_and_not_that_of_queueing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device needs a millisecond for each call that is queued, and the host no time."""
    now_s = queued_s = 0.0

    def synchronize(device: torch.device) -> None:
        nonlocal now_s, queued_s
        now_s, queued_s = now_s + queued_s, 0.0

    def queue() -> None:
        nonlocal queued_s
        queued_s += 0.001

    monkeypatch.setattr(device, "synchronize", synchronize)
    monkeypatch.setattr(device.time, "perf_counter", lambda: now_s)

    assert device._time(queue, torch.device("cpu")) == pytest.approx(0.001)
