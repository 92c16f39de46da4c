"""Fault injection in a rank: what a calibration adds to an arm's iterations for a gate to find.

A slowdown is of whole rounds (`measure_rounds`): one of each iteration would have to wait for the
device at its end, which slows a step by more than was planted.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from perfsuite.errors import WorkloadError
from perfsuite.ranks.messages import TurnChannel
from perfsuite.worker.measure.device import is_accelerator, synchronize
from perfsuite.worker.measure.iterations import Iterations, T

# More than the exact gate leaves to any peak; one that was recorded as `max_memory_allocated` may
# grow by 16 MiB.
LEAKED_BYTES = 17 * 2**20


def inject_fault(
    asked: Iterations[T], channel: TurnChannel | None, device: torch.device
) -> Iterations[T]:
    """Ask for the same iterations, each with the fault that the arm's channel names, if any."""
    fault = None if channel is None else channel.planted_fault
    wait = _synchronization(device) if fault == "synchronization" else None
    leaked: list[torch.Tensor] = []
    while True:
        try:
            stage = next(asked)
        except StopIteration as ended:
            result: T = ended.value
            return result
        if fault == "leak":
            leaked.clear()  # the machine would run out of more than one iteration's
            leaked.append(torch.empty(LEAKED_BYTES, dtype=torch.uint8, device=device))
        yield stage
        if wait is not None:
            wait()


def _synchronization(device: torch.device) -> Callable[[], None]:
    has_ranks = dist.is_initialized() and dist.get_world_size() > 1
    if not is_accelerator(device) and not has_ranks:
        raise WorkloadError(
            "a synchronization cannot be planted in one process on a CPU, where nothing is "
            "asynchronous; use a cell of several ranks, such as ddp:2"
        )
    token = torch.zeros(1, device=device)

    def wait() -> None:
        if has_ranks:
            dist.all_reduce(token)
        synchronize(device)

    return wait
