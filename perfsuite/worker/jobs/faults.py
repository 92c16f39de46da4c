"""Fault injection in a rank: what a calibration adds to an arm's iterations for a gate to find."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from perfsuite.errors import WorkloadError
from perfsuite.ranks.messages import TurnChannel
from perfsuite.records.stages import Stage

# A MiB more than the exact gate leaves to CUDA's allocator.
LEAKED_BYTES = 17 * 2**20

Iterate = Callable[[Stage], None]


def inject_fault(iterate: Iterate, channel: TurnChannel | None, device: torch.device) -> Iterate:
    """Return the iteration with the fault that the arm's channel names, itself without one."""
    if channel is None:
        return iterate
    if channel.planted_ratio:
        return _slower(iterate, channel.planted_ratio, device)
    if channel.planted_fault == "leak":
        return _leaking(iterate, device)
    if channel.planted_fault == "synchronization":
        return _synchronizing(iterate, device)
    return iterate


def _slower(iterate: Iterate, ratio: float, device: torch.device) -> Iterate:
    def iterate_slower(stage: Stage) -> None:
        began_s = time.perf_counter()
        iterate(stage)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now_s = time.perf_counter()
        until_s = now_s + ratio * (now_s - began_s)
        while time.perf_counter() < until_s:  # a sleep would last 0.1 ms too long
            pass

    return iterate_slower


def _leaking(iterate: Iterate, device: torch.device) -> Iterate:
    """Keep the memory of the last iteration alone: the machine would run out of more."""
    leaked: list[torch.Tensor] = []

    def iterate_leaking(stage: Stage) -> None:
        leaked.clear()
        leaked.append(torch.empty(LEAKED_BYTES, dtype=torch.uint8, device=device))
        iterate(stage)

    return iterate_leaking


def _synchronizing(iterate: Iterate, device: torch.device) -> Iterate:
    has_ranks = dist.is_initialized() and dist.get_world_size() > 1
    if device.type != "cuda" and not has_ranks:
        raise WorkloadError(
            "a synchronization cannot be planted in one process on a CPU, where nothing is "
            "asynchronous; use a cell of several ranks, such as ddp:2"
        )
    token = torch.zeros(1, device=device)

    def iterate_synchronizing(stage: Stage) -> None:
        iterate(stage)
        if has_ranks:
            dist.all_reduce(token)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return iterate_synchronizing
