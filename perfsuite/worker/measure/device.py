"""What timing and counting need of a rank's accelerator, whichever torch drives."""

from typing import Any

import torch


def is_accelerator(device: torch.device) -> bool:
    """Whether the host only queues the work."""
    return device.type != "cpu"


def synchronize(device: torch.device) -> None:
    """Return when the device has done all its work."""
    if is_accelerator(device):
        _module(device).synchronize(device)


def make_event(device: torch.device) -> torch.Event:
    """Return an event with timing, to be recorded in the device's current stream."""
    event: torch.Event = _module(device).Event(enable_timing=True)
    return event


def memory_stats(device: torch.device) -> dict[str, int]:
    """Return the allocator's own counters."""
    return dict(_module(device).memory_stats(device))


def reset_peak(device: torch.device) -> None:
    """Have the allocator's peaks start anew from what is in use now."""
    _module(device).reset_peak_memory_stats(device)


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
