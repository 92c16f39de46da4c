"""How busy and how full one rank's device is over time, sampled by a thread beside the work."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import psutil
import pynvml

from perfsuite.system.gpus import if_shown, memory_info, nvml

# NVML's utilisation is of the last sixth of a second up to a second, by product (NVML API
# reference, nvmlUtilization_t); looking more often would show the same value again.
PERIOD_S = 0.2
# Gives how busy a device is now, 0 to 1, and how many bytes of it are in use.
Meter = Callable[[], tuple[float | None, int]]


class UsageLog:
    """Samples of a meter, one each period and one at the end."""

    def __init__(self, meter: Meter, clock: Callable[[], float] = time.perf_counter) -> None:
        self._meter, self._clock = meter, clock
        self._started_s = clock()
        self._samples: list[UsageSample] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> "tuple[UsageSample, ...]":
        """End the thread and return the samples; the last is taken now."""
        self._is_over.set()
        self._thread.join()
        self._look()
        return tuple(self._samples)

    def _watch(self) -> None:
        while not self._is_over.wait(PERIOD_S):
            self._look()

    def _look(self) -> None:
        at_s = round(self._clock() - self._started_s, 6)
        ratio, used = self._meter()
        self._samples.append(UsageSample(at_s=at_s, utilization_ratio=ratio, memory_bytes=used))


@contextmanager
def open_meter(gpu_uuid: str | None) -> Iterator[Meter | None]:
    """Hold the meter of a GPU, None without NVML; of all cores and this process without a UUID."""
    if gpu_uuid is None:
        process = psutil.Process()
        # The first answer is meaningless: it starts the interval of the second.
        psutil.cpu_percent()
        yield lambda: (psutil.cpu_percent() / 100, process.memory_info().rss)
        return
    with nvml() as failure:
        yield partial(_read_gpu, gpu_uuid) if failure is None else None


def _read_gpu(uuid: str) -> tuple[float | None, int]:
    """The share of time when a kernel ran, and what all processes together use."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    rates = if_shown(pynvml.nvmlDeviceGetUtilizationRates, handle)  # not of a MIG instance
    return None if rates is None else rates.gpu / 100, int(memory_info(handle).used)


class UsageSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How busy a device was since the sample before, and how full.

    Attributes:
        at_s: Since the start of the first epoch.
        utilization_ratio: Of a GPU: the time when any kernel ran on it (NVML). Of a CPU: of
            all cores, by any process. None where the device does not report it.
        memory_bytes: In use on a GPU; on a CPU the rank's resident set without loader workers.
    """

    at_s: float
    utilization_ratio: float | None
    memory_bytes: int
