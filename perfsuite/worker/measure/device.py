"""What timing and counting need of a rank's accelerator, whichever torch drives.

Two GPUs of one name differ by some per cent. A power cap, memory rows that were taken out of use,
or a link with fewer lanes than it had are in no fingerprint: fixed pieces of work tell a slower
device from slower code.
"""

import functools
import statistics
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch

# A change of a number here makes all stored probes useless.
_SIZE = 4096
# More than any cache of a device holds.
_COPIED_BYTES = 256 * 2**20
_NUM_LAUNCHES = 256
# What is queued together: the wait for the device is a small part of it.
_NUM_QUEUED = 16
_NUM_REPEATS = 7
# A device that rested raises its clock meanwhile.
_WARM_UP_S = 0.3


def is_accelerator(device: torch.device) -> bool:
    """Whether the host only queues the work."""
    return device.type != "cpu"


def synchronize(device: torch.device) -> None:
    """Return when the device, and any other that this process uses, has done all its work."""
    if not is_accelerator(device):
        return
    module = torch.get_device_module(device)
    module.synchronize(device)
    # Waiting for a device makes a context on it, which takes memory.
    is_used = getattr(torch._C, "_cuda_hasPrimaryContext", lambda _: False)
    for number in range(module.device_count() if device.type == "cuda" else 0):
        if number != device.index and is_used(number):
            module.synchronize(number)


def make_event(device: torch.device) -> torch.Event:
    """Return an event with timing, which is recorded in the current stream of this very device."""
    event: torch.Event = torch.get_device_module(device).Event(enable_timing=True)
    record = event.record
    # By itself it asks for the stream of the device that is set, where a training may use another.
    in_stream: Any = lambda: record(_current_stream(device))  # noqa: E731
    event.record = in_stream  # type: ignore[method-assign]
    return event


def _current_stream(device: torch.device) -> Any:
    if device.type != "cuda":
        return torch.get_device_module(device).current_stream(device)
    return _stream(device, torch._C._cuda_getCurrentRawStream(device.index))


@functools.cache
def _stream(device: torch.device, _: int) -> Any:
    """Return the current stream by its address: torch takes 6 us to make one, an event takes 2."""
    return torch.get_device_module(device).current_stream(device)


def memory_stats(device: torch.device) -> dict[str, int]:
    """Return the allocator's own counters; none of the user's own (`CUDAPluggableAllocator`)."""
    module = torch.get_device_module(device)
    kind = getattr(module, "get_allocator_backend", str)()
    return {} if kind == "pluggable" else dict(module.memory_stats(device))


def probe_device(device_type: str) -> dict[str, float]:
    """Return seconds of each piece of work, by name; takes about half a second.

    "GPU matmul" follows the clock of the multiprocessors, "GPU launch" is 256 empty kernels.
    """
    device = torch.device(device_type)
    factor = torch.ones(_SIZE, _SIZE, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(factor)
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    host = torch.ones(_COPIED_BYTES, dtype=torch.uint8, pin_memory=is_accelerator(device))
    number = torch.ones(1, device=device)

    def launch() -> None:
        for _ in range(_NUM_LAUNCHES):
            number.add_(0)

    works: dict[str, Callable[[], object]] = {
        "GPU matmul": lambda: torch.mm(factor, factor, out=product),
        "GPU memory": lambda: target.copy_(source),
        "GPU link": lambda: target.copy_(host, non_blocking=True),
        "GPU launch": launch,
    }
    end_s = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < end_s:
        _time(works["GPU matmul"], device)
    return {name: _time(work, device) for name, work in works.items()}


def _time(work: Callable[[], object], device: torch.device) -> float:
    def work_through() -> None:
        for _ in range(_NUM_QUEUED):
            work()
        synchronize(device)

    work()
    synchronize(device)
    times_s = timeit.repeat(work_through, timer=time.perf_counter, repeat=_NUM_REPEATS, number=1)
    return statistics.median(times_s) / _NUM_QUEUED
