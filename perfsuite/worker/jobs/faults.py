"""Fault injection in a rank: what a calibration adds to an arm's iterations for a gate to find.

A slowdown is of whole rounds (`measure_rounds`): one of each iteration would have to wait for the
device at its end, which slows a step by more than was planted.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist

from perfsuite.errors import WorkloadError
from perfsuite.ranks.messages import TurnChannel
from perfsuite.worker.measure.device import is_accelerator, synchronize
from perfsuite.worker.measure.iterations import Iterations, T

# More than the exact gate leaves to any peak; one that was recorded as `max_memory_allocated` may
# grow by 16 MiB.
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
    if channel.planted_fault == "leak":
        return _leak(device)
    if channel.planted_fault == "synchronization":
        return _synchronization(device)
    return nullcontext


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
    if not is_accelerator(device) and not has_ranks:
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
        synchronize(device)

    return synchronizing
