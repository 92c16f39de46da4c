"""Fixed pieces of work on a rank's accelerator, which tell a slower device from slower code.

Two GPUs of one name differ by some per cent. A power cap, memory rows that were taken out of use,
or a link with fewer lanes than it had are in no fingerprint.
"""

import statistics
import time
import timeit
from collections.abc import Callable

import torch

from perfsuite.worker.measure.device import is_accelerator, synchronize

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
