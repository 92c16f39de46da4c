"""Fault injection in a rank: what a calibration adds to an arm's iterations for a gate to find."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist

from perfsuite.errors import WorkloadError
from perfsuite.ranks.messages import TurnChannel
from perfsuite.worker.measure.iterations import Iterations, T

# A MiB more than the exact gate leaves to CUDA's allocator.
LEAKED_BYTES = 17 * 2**20

# What is entered for each iteration.
Fault = Callable[[], AbstractContextManager[None]]


def inject_fault(
    asked: Iterations[T], channel: TurnChannel | None, device: torch.device
) -> Iterations[T]:
    """Ask for the same iterations, each with the fault that the arm's channel names, if any."""
    fault = nullcontext if channel is None else _fault_of(channel, device)
    while True:
        try:
            stage = next(asked)
        except StopIteration as ended:
            result: T = ended.value
            return result
        with fault():
            yield stage


def _fault_of(channel: TurnChannel, device: torch.device) -> Fault:
    if channel.planted_ratio:
        return _slowness(channel.planted_ratio, device)
    if channel.planted_fault == "leak":
        return _leak(device)
    if channel.planted_fault == "synchronization":
        return _synchronization(device)
    return nullcontext


def _slowness(ratio: float, device: torch.device) -> Fault:
    @contextmanager
    def slower() -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now_s = time.perf_counter()
        until_s = now_s + ratio * (now_s - began_s)
        while time.perf_counter() < until_s:  # a sleep would last 0.1 ms too long
            pass

    return slower


def _leak(device: torch.device) -> Fault:
    """Keep the memory of the last iteration alone: the machine would run out of more."""
    leaked: list[torch.Tensor] = []

    @contextmanager
    def leaking() -> Iterator[None]:
        leaked.clear()
        leaked.append(torch.empty(LEAKED_BYTES, dtype=torch.uint8, device=device))
        yield

    return leaking


def _synchronization(device: torch.device) -> Fault:
    has_ranks = dist.is_initialized() and dist.get_world_size() > 1
    if device.type != "cuda" and not has_ranks:
        raise WorkloadError(
            "a synchronization cannot be planted in one process on a CPU, where nothing is "
            "asynchronous; use a cell of several ranks, such as ddp:2"
        )
    token = torch.zeros(1, device=device)

    @contextmanager
    def synchronizing() -> Iterator[None]:
        yield
        if has_ranks:
            dist.all_reduce(token)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return synchronizing
