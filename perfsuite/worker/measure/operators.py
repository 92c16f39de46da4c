"""What the operators, and Python's functions, of a few iterations cost, which profiling slows."""

import math
import os
import sys
import tempfile
from _lsprof import Profiler  # cProfile imports `profile`, which may be a module of the user's
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from perfsuite.records.cell import Operator
from perfsuite.records.profile import Communication
from perfsuite.records.stages import untimed
from perfsuite.worker.measure.iterations import Iterations

NUM_OPERATORS = 10
_NUM_TABLE_ROWS = 40
# Marks a stage in a trace, to separate it from operators.
_STAGE_PREFIX = "stage: "
# The names of collectives: gloo's work on a CPU, NCCL's kernels on a GPU. What NCCL does on the
# host is over when its kernel is queued.
_ON_HOST = "gloo:"
_COMMUNICATION = (_ON_HOST, "nccl")
_NO_OPERATORS = (_STAGE_PREFIX, *_COMMUNICATION)
# What computes on a CPU. Operators of c10d wait for other ranks, and autograd's nodes may.
_CPU_COMPUTE = "aten::"
_US_PER_S = 1e6


def profile_iterations(
    device: torch.device, *, num_iterations: int, with_memory: bool = False
) -> Iterations[profile]:
    """Return the finished profile; `with_memory` adds what operators allocate, which takes time."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, profile_memory=with_memory)
    with _silent_errors(), profiler:
        for _ in range(num_iterations):
            yield lambda name: record_function(f"{_STAGE_PREFIX}{name}")
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return profiler


def costliest_operators(averages: Iterable[Any], device: torch.device) -> tuple[Operator, ...]:
    """Return the operators with the most time of their own, from `profile.key_averages()`."""
    field = _time_field(device)
    operators = [
        Operator(name=one.key, calls=one.count, self_s=round(getattr(one, field) / _US_PER_S, 9))
        for one in averages
        # Kernels have rows of their own beside the operators that launched them.
        if one.device_type == DeviceType.CPU and not one.key.startswith(_NO_OPERATORS)
    ]
    return _costliest(operators)[:NUM_OPERATORS]


def profile_functions() -> Iterations[tuple[Operator, ...]]:
    """Return Python's functions, each with what it calls in C; none where the code has a profiler.

    What the training's own frame calls in C is there by itself: the frame is older than a profile.
    """
    profiler = Profiler()
    with ExitStack() as stack:
        with suppress(ValueError):  # since Python 3.12 it refuses to be the second one
            if sys.getprofile() is None:
                profiler.enable()
                stack.callback(profiler.disable)
        yield untimed
    calls, own_s = Counter[str](), defaultdict[str, float](float)
    for one in profiler.getstats():
        at = one.code
        name = at if isinstance(at, str) else f"{Path(at.co_filename).name}:{at.co_qualname}"
        calls[name] += one.callcount
        own_s[name] += one.inlinetime
        for part in one.calls or ():
            if isinstance(part.code, str):  # in C
                own_s[name] += part.inlinetime
                own_s[part.code] -= part.inlinetime
    functions = (Operator(name=it, calls=calls[it], self_s=max(0.0, own_s[it])) for it in calls)
    return _costliest(functions)


def _costliest(found: Iterable[Operator]) -> tuple[Operator, ...]:
    spent = (one for one in found if one.self_s > 0)
    return tuple(sorted(spent, key=lambda one: (-one.self_s, one.name)))


def measure_communication(events: Iterable[Any], device: torch.device) -> Communication | None:
    """Return how long collectives ran, and how much of it computing hid; None without collectives.

    On a GPU NCCL's kernels, which begin when their rank has come, are compared with all others; on
    a CPU, or through gloo, gloo's background work with ATen's operators.
    """
    communicated, computed = [], []
    for event in events:
        interval = (event.time_range.start, event.time_range.end)
        is_kernel = event.device_type != DeviceType.CPU and not event.is_user_annotation
        computes = event.name.startswith(_CPU_COMPUTE) if device.type == "cpu" else is_kernel
        if event.name.startswith(_COMMUNICATION):
            if event.is_async if event.name.startswith(_ON_HOST) else is_kernel:
                communicated.append(interval)
        elif computes:
            computed.append(interval)
    if not communicated:
        return None
    total_s = covered(communicated) / _US_PER_S
    hidden_s = overlap(communicated, computed) / _US_PER_S
    return Communication(total_s=total_s, exposed_s=total_s - hidden_s, overlapped_s=hidden_s)


def describe_operators(averages: Any, device: torch.device) -> str:
    """Return the table of operators that `torch.profiler` prints, costliest first."""
    return str(averages.table(sort_by=_time_field(device), row_limit=_NUM_TABLE_ROWS))


def describe_memory(averages: Any, device: torch.device) -> str:
    """Return the allocator's summary of a GPU; on a CPU the operators that allocate most."""
    if device.type == "cuda":
        return str(torch.cuda.memory_summary(device))
    return str(averages.table(sort_by="self_cpu_memory_usage", row_limit=_NUM_TABLE_ROWS))


def read_trace(profiler: profile) -> bytes:
    """Return the Chrome trace of a finished profile, in JSON."""
    with tempfile.TemporaryDirectory() as folder, _silent_errors():
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()


def _time_field(device: torch.device) -> str:
    return "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"


@contextmanager
def _silent_errors() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the intervals is under way."""
    length, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def overlap(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Return how long intervals of both lists are under way at the same time."""
    # Rounding may leave less than nothing.
    return max(0.0, covered(one) + covered(other) - covered([*one, *other]))
