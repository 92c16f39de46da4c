"""What timing and counting need of a rank's accelerator, whichever torch drives."""

import functools
from typing import Any

import torch


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
