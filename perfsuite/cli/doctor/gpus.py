"""The GPUs as NVML shows them: which there are, and what would disturb a timing on them.

Must not import torch: CUDA must not start in the controller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from perfsuite.cli.doctor.findings import Finding
from perfsuite.errors import DeviceError
from perfsuite.system.gpus import GpuFacts, driver_version, nvml, visible_gpus
from perfsuite.units import format_bytes

# nvmlClocksThrottleReasons of NVML's API reference. Left out: an idle GPU, and application clocks
# that somebody set, which make timings steadier.
_THROTTLE_REASONS = {
    "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
    "software thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """What may disturb a timing on one GPU; a value is None where NVML does not show it.

    Attributes:
        throttle_bits: Why its clock is below the wish, as a bit mask.
        is_persistent: Whether the driver stays loaded while nobody uses the GPU.
        process_ids: Processes that compute on it.
    """

    throttle_bits: int | None
    is_persistent: bool | None
    process_ids: tuple[int, ...] | None


def examine_gpus() -> list[Finding]:
    """Return what is found about the GPUs that CUDA would show, one finding each."""
    try:
        gpus = visible_gpus()
        if not gpus:
            return [Finding("GPUs", "ok", "none visible; cells run on the CPU")]
        found = f"{len(gpus)} visible, driver {driver_version()}"
        states = _read_states(gpus)
    except DeviceError as error:
        return [Finding("GPUs", "fail", str(error), "see nvidia-smi; restart the driver")]
    return [
        Finding("GPUs", "ok", found),
        *(
            gpu_finding(f"GPU {index}", gpu, state)
            for index, (gpu, state) in enumerate(zip(gpus, states, strict=True))
        ),
    ]


def gpu_finding(subject: str, gpu: GpuFacts, state: GpuState) -> Finding:
    """Judge one GPU by its worst disturbance."""
    text = f"{gpu.name}, {format_bytes(gpu.memory_bytes)}"
    if state.process_ids:
        pids = ", ".join(map(str, state.process_ids))
        return Finding(
            subject, "warn", f"{text}: processes compute on it: {pids}", "end them, or wait"
        )
    reasons = [name for name, bit in _THROTTLE_REASONS.items() if (state.throttle_bits or 0) & bit]
    if reasons:
        return Finding(
            subject,
            "warn",
            f"{text}: its clock is held down: {', '.join(reasons)}",
            "let it cool, or raise its limit (nvidia-smi --query --display=PERFORMANCE,POWER)",
        )
    if state.is_persistent is False:
        return Finding(
            subject,
            "warn",
            f"{text}: without persistence mode each cell waits for the driver to load",
            "sudo nvidia-smi --persistence-mode=1",
        )
    return Finding(subject, "ok", text)


def _read_states(gpus: list[GpuFacts]) -> list[GpuState]:
    with nvml():
        return [_read_state(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)) for gpu in gpus]


def _read_state(handle: Any) -> GpuState:
    persistence = _if_shown(pynvml.nvmlDeviceGetPersistenceMode, handle)
    processes = _if_shown(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return GpuState(
        throttle_bits=_if_shown(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        is_persistent=None if persistence is None else bool(persistence),
        process_ids=None if processes is None else tuple(process.pid for process in processes),
    )


def _if_shown(query: Callable[[Any], Any], handle: Any) -> Any | None:
    """Return what NVML answers; None where this device, driver or user is not told."""
    try:
        return query(handle)
    except pynvml.NVMLError:
        return None
