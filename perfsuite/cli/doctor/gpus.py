"""The GPUs as NVML shows them: which there are, and what would disturb a timing on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from perfsuite.cli.doctor.findings import Finding
from perfsuite.errors import DeviceError
from perfsuite.system.gpus import GpuFacts, driver_version, nvml, visible_gpus
from perfsuite.units import format_bytes

# nvmlClocksThrottleReasons of NVML's API reference. Left out: an idle GPU, and application clocks,
# which make timings steadier.
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
    """What may disturb a timing on one GPU; a value is None where NVML does not show it."""

    throttle_bits: int | None  # why its clock is held down
    is_persistent: bool | None
    process_ids: tuple[int, ...] | None  # that compute on it


def examine_gpus() -> list[Finding]:
    """Return what is found about the GPUs that CUDA would show, one finding each."""
    try:
        gpus = visible_gpus()
        if not gpus:
            return [Finding("GPUs", "ok", "none visible; cells run on the CPU")]
        found = f"{len(gpus)} visible, driver {driver_version()}"
        with nvml():
            states = [_read_state(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)) for gpu in gpus]
    except DeviceError as error:
        return [Finding("GPUs", "fail", str(error), "see nvidia-smi; restart the driver")]
    numbered = enumerate(zip(gpus, states, strict=True))
    judged = [gpu_finding(f"GPU {index}", gpu, state) for index, (gpu, state) in numbered]
    return [Finding("GPUs", "ok", found), *judged]


def gpu_finding(subject: str, gpu: GpuFacts, state: GpuState) -> Finding:
    """Judge one GPU by its worst disturbance."""
    text = f"{gpu.name}, {format_bytes(gpu.memory_bytes)}"
    if state.process_ids:
        text += f": processes compute on it: {', '.join(map(str, state.process_ids))}"
        return Finding(subject, "warn", text, "end them, or wait")
    reasons = [name for name, bit in _THROTTLE_REASONS.items() if (state.throttle_bits or 0) & bit]
    if reasons:
        text += f": its clock is held down: {', '.join(reasons)}"
        advice = "let it cool, or raise its limit (nvidia-smi --query --display=PERFORMANCE,POWER)"
        return Finding(subject, "warn", text, advice)
    if state.is_persistent is False:
        text += ": without persistence mode each cell waits for the driver to load"
        return Finding(subject, "warn", text, "sudo nvidia-smi --persistence-mode=1")
    return Finding(subject, "ok", text)


def _read_state(handle: Any) -> GpuState:
    persistence = _if_shown(pynvml.nvmlDeviceGetPersistenceMode, handle)
    processes = _if_shown(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return GpuState(
        throttle_bits=_if_shown(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        is_persistent=None if persistence is None else bool(persistence),
        process_ids=None if processes is None else tuple(process.pid for process in processes),
    )


def _if_shown(query: Callable[[Any], Any], handle: Any) -> Any | None:
    """Return what NVML answers; None where it refuses for this device, driver or user."""
    try:
        return query(handle)
    except pynvml.NVMLError:
        return None
