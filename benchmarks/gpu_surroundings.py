"""The checks of gpu_acceptance.py of what surrounds a step: memory, counts, sensors, ranks."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import torch
from gpu_devices import Device

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.arms.launched import turn_clock
from perfsuite.gate.judge import pair_evidence
from perfsuite.gate.judge.counts import compare_counts
from perfsuite.ranks.group import run_group
from perfsuite.ranks.messages import CallFunction, FunctionReturned, GroupPolicy, GroupRequest
from perfsuite.ranks.pickling import pack, packed_by_value, unpack
from perfsuite.records.cell import Memory
from perfsuite.records.run_file import StoredCell
from perfsuite.records.stages import Stage
from perfsuite.system import fitness, gpus
from perfsuite.worker.measure.counters import count_device_calls
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.measure.memory import measure_peak
from perfsuite.worker.training.mixed_precision import PRECISION_POLICIES, set_tf32

MIB = 2**20


def call_in_ranks(
    num_ranks: int, function: Callable[..., Any], *args: object, device: str = "cpu"
) -> list[Any]:
    """Return what the function returned on each of so many fresh ranks."""
    with packed_by_value([sys.modules[function.__module__]]):
        call = pack((function, args))
    policy = GroupPolicy(device=device, num_gpus=num_ranks if device == "cuda" else 0)
    request = GroupRequest(job=CallFunction(call=call), world_size=num_ranks, policy=policy)
    replies = run_group(request)
    return [unpack(reply.value) for reply in replies if isinstance(reply, FunctionReturned)]


# --- what there is ---


def _is_bad_fork() -> bool:
    core: Any = torch._C
    return bool(core._cuda_isInBadFork())


class HidingNvml:
    """NVML in a container: a GPU, and nothing of what surrounds it."""

    def __getattr__(self, name: str) -> Any:
        shown = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * 2**30),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlInit": None,
            "nvmlShutdown": None,
        }
        if not name.startswith("nvml") or name[4:5].islower():
            return getattr(pynvml, name)
        if name in shown:
            return lambda *_: shown[name]
        around = ("Affinity", "Ecc", "Pcie", "NvLink", "ClockInfo")
        code = pynvml.NVML_ERROR_UNKNOWN
        if not any(word in name for word in around):
            code = pynvml.NVML_ERROR_NOT_SUPPORTED

        def hide(*_: object) -> None:
            raise pynvml.NVMLError(code)

        return hide


def stack(figures: Any) -> None:
    figures.must("torch had asked for CUDA in a rank", *_found(call_in_ranks(1, _is_bad_fork)))
    module: Any = gpus
    if not figures.device.is_real:
        module.pynvml = HidingNvml()
    try:
        found: object = gpus.visible_gpus({})
        with gpus.open_clocks() as read_clocks:
            clocks: object = read_clocks()
    except (PerfsuiteError, pynvml.NVMLError) as error:
        figures.must("NVML", repr(error), False)
        return
    finally:
        module.pynvml = pynvml
    figures.told("GPUs", found)
    figures.told("clocks", clocks)
    figures.must("a GPU is seen", found, bool(found))


def _found(answers: list[Any]) -> tuple[object, bool]:
    return answers, answers == [False]


# --- plain benchmarks ---


@dataclass
class Alone:
    """Nothing beside the main thread of a launch."""

    def processes(self) -> Mapping[int, Any]:
        return {}

    def threads(self) -> list[int]:
        return []

    def thread_seconds(self) -> Mapping[int, float]:
        return {}

    def stop(self) -> None:
        pass

    def resume(self) -> None:
        pass


def plain_suite(figures: Any) -> None:
    device: Device = figures.device
    if not device.is_real:
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            synchronize=lambda _: device.synchronize(),
        )
        core = SimpleNamespace(_cuda_hasPrimaryContext=lambda _: True)
        stand_in = SimpleNamespace(cuda=cuda, _C=core)
        turn_clock.sys = SimpleNamespace(modules={"torch": stand_in})  # type: ignore[assignment]
    clock = turn_clock.TurnClock(
        device.clock,
        turn_clock.SharedCore(None, Alone()),
        wait_for_turn=lambda: None,
        end_turn=lambda: None,
        end_round=lambda: None,
        collects_garbage=False,
        waits=None,
    )
    for num_kernels in (1, 2):
        device.work(0.050)  # of before, which belongs to no turn
        began_s = clock()
        for _ in range(num_kernels):
            device.work(0.020)
        figures.near(f"{num_kernels} of 20 ms", clock() - began_s, 0.020 * num_kernels, 0.02)


# --- memory ---


def memory(figures: Any) -> None:
    device: Device = figures.device

    def peak(leaked_bytes: int = 0) -> StoredCell:
        def iterate(stage: Stage) -> None:
            with stage("forward"):
                kept = [device.allocate(3 * MIB + 700) for _ in range(8)]
            with stage("backward"):
                kept.pop()

        leaked = device.allocate(leaked_bytes) if leaked_bytes else None
        found = run_iterations(measure_peak(iter(()), device.torch_device), iterate)
        del leaked
        assert found is not None
        memory = Memory(
            metric=found.metric, peak_bytes=found.peak_bytes, per_rank=(found.peak_bytes,)
        )
        return StoredCell(median_s=1.0, memory=memory)

    peaks = [peak() for _ in range(8)]
    sizes = sorted({one.memory.peak_bytes for one in peaks if one.memory})
    figures.must("peaks of 8 measurements", sizes, len(sizes) == 1)
    found = compare_counts(peaks[0], peak(MIB)).increases
    figures.must("a leak of 1 MiB", [str(one) for one in found], len(found) == 1)


_FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "RuntimeError: GET was unable to find an engine to execute this computation",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2",
)


def two_arms_memory(figures: Any) -> None:
    device: Device = figures.device
    texts = list(_FULL)
    if device.is_real:
        free_bytes, _ = torch.cuda.mem_get_info(device.torch_device)
        filler = device.allocate(free_bytes - 200 * MIB)
        for start in (lambda: device.allocate(2**30), _multiply, _convolve):
            try:
                start()
            except RuntimeError as error:
                texts.append(str(error))
                figures.told("a full GPU says", str(error).partition("\n")[0])
        del filler
    for text in texts:
        figures.must(text, "recognised", pair_evidence._OUT_OF_MEMORY.search(text) is not None)
    for text in ("CUDA error: an illegal memory access", "CUDA error: device-side assert"):
        figures.must(text, "no full GPU", pair_evidence._OUT_OF_MEMORY.search(text) is None)


def _multiply() -> None:
    ones = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize((ones @ ones).device)


def _convolve() -> None:
    images = torch.ones(64, 64, 56, 56, device="cuda")
    torch.nn.functional.conv2d(images, torch.ones(64, 64, 3, 3, device="cuda"))


# --- counts ---


class SilentProfiler:
    """torch's where another tool listens to CUPTI."""

    def __init__(self, activities: object) -> None:
        del activities

    def __enter__(self) -> SilentProfiler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        times = {"ph": "X", "ts": 0, "dur": 1}
        names = {"perfsuite: iteration": "user_annotation", "aten::mm": "cpu_op"}
        events = [{"name": name, "cat": cat, **times} for name, cat in names.items()]
        Path(path).write_text(json.dumps({"traceEvents": events}))


def counts(figures: Any) -> None:
    device: Device = figures.device
    cuda = torch.device("cuda", 0)
    if not device.is_real:
        torch.cuda.synchronize = lambda *_: None
        profiler: Any = torch.profiler
        profiler.profile = SilentProfiler
        found = run_iterations(count_device_calls(cuda), lambda _: None)
        figures.must("launches that nobody saw", found, found == {})
        return
    ones = torch.ones(64, 64, device=cuda)
    (ones @ ones).sum().item()  # the first product makes cuBLAS's handle and workspace
    seen = [
        run_iterations(count_device_calls(cuda), lambda _: (ones @ ones).sum().item())
        for _ in range(5)
    ]
    figures.must("calls of 5 products", seen, all(one == seen[0] for one in seen) and bool(seen[0]))
    waits = [one["host_syncs"] for one in seen]
    figures.must("waits of `.item()`", waits, waits == [1] * 5)
    sizes = [(one["device_copies"], one["device_copy_bytes"]) for one in seen]
    figures.must("copies of `.item()`, and bytes", sizes, sizes == [(1, 4)] * 5)


# --- sensors ---


def sensors(figures: Any) -> None:
    device: Device = figures.device
    if device.is_real:
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            device.work(0.01)
            device.synchronize()
    else:
        _stand_in_for_nvml()
    found = fitness.read_sensors().gpu_users
    figures.must("others on the GPU, by a sample of our own load", found, found == ())
    if not device.is_real:
        found = fitness.read_sensors().gpu_users
        figures.must("others on the GPU that load it for long", found, found == (42,))


def _stand_in_for_nvml() -> None:
    """Show the last pair's load in the first sample, and then that of another process for good."""
    from contextlib import nullcontext

    samples = itertools.chain([97, 0], itertools.repeat(97))
    module: Any = fitness
    module.visible_handles = lambda: nullcontext(["gpu"])
    module.time = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None)
    played: Any = pynvml
    played.nvmlDeviceGetViolationStatus = lambda *_: SimpleNamespace(violationTime=0)
    played.nvmlDeviceGetUUID = lambda _: "GPU-1"
    played.nvmlDeviceGetUtilizationRates = lambda _: SimpleNamespace(gpu=next(samples))
    played.nvmlDeviceGetComputeRunningProcesses = lambda _: [SimpleNamespace(pid=42)]


# --- precision ---


def precision(figures: Any) -> None:
    device: Device = figures.device
    backends: Any = torch.backends
    cuda = torch.device("cuda", 0)
    for name, expected in (("fp32", "ieee"), ("tf32", "tf32")):
        backends.fp32_precision = "tf32"  # as a model file may
        set_tf32(PRECISION_POLICIES[name], cuda)
        parts = (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)
        found = [part.fp32_precision for part in parts]
        figures.must(f"{name}: convolutions, RNNs, products", found, found == [expected] * 3)
        if device.is_real:
            error = _error_of_convolution(cuda)
            # Winograd's convolutions err by some 1e-5 in fp32.
            is_right = error <= 3e-5 if name == "fp32" else 1e-4 < error < 1e-2
            figures.must(f"{name}: error of a convolution", f"{error:.1e}", is_right)


def _error_of_convolution(device: torch.device) -> float:
    torch.manual_seed(0)
    images, weights = torch.randn(8, 64, 28, 28), torch.randn(64, 64, 3, 3)
    truth = torch.nn.functional.conv2d(images.double(), weights.double())
    found = torch.nn.functional.conv2d(images.to(device), weights.to(device)).cpu().double()
    return float((found - truth).norm() / truth.norm())


# --- faults ---

_WATCHDOG = (
    "[rank0]:[E1122 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=30000) ran for 30021 milliseconds"
)


def _abort_as_a_watchdog_does() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 0:
        frames = [f"frame #{number}: <unknown function> + 0xd6df4" for number in range(100)]
        print(_WATCHDOG, *frames, sep="\n", flush=True)
        os.abort()
    time.sleep(600)


def faults(figures: Any) -> None:
    device: Device = figures.device
    said = _error_of(lambda: call_in_ranks(2, _abort_as_a_watchdog_does))
    figures.must("a watchdog's time-out", said, said.startswith("rank 1 of 2 did not come to"))
    if not device.is_real:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        said = _error_of(lambda: call_in_ranks(1, _is_bad_fork, device="cuda"))
        figures.must("GPUs that torch cannot use", said, said.startswith("NVML shows 1 GPU, and"))
    answers = call_in_ranks(1, _is_bad_fork)
    figures.must("the next group", answers, answers == [False])


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except PerfsuiteError as error:
        return str(error).partition("\n")[0]
    return "no error"
