"""The GPUs as NVML shows them: which there are, and what would disturb a timing on them."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from perfsuite.cli.doctor.findings import Finding
from perfsuite.errors import DeviceError
from perfsuite.system import gpus
from perfsuite.units import counted, format_bytes

# nvmlClocksThrottleReasons (NVML API reference), without an idle GPU and application clocks.
_THROTTLE_REASONS = {
    "power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
    "software thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}


class GpuState(NamedTuple):
    """What may disturb a timing on one GPU; a value is None where NVML does not show it."""

    throttle_bits: int | None  # why its clock is held down
    is_persistent: bool | None
    process_ids: tuple[int, ...] | None  # that compute on it
    compute_mode: int | None = None
    most_lanes: int | None = None  # of its link, where both ends have them
    awaits_reset: bool | None = None  # to take rows of broken memory out of use


def examine_gpus() -> list[Finding]:
    """Return what is found about the GPUs that CUDA would show, one finding each."""
    try:
        if not (visible := gpus.visible_gpus()):
            gpus.refuse_hidden_gpus()
            return [Finding("GPUs", "ok", "none visible; cells run on the CPU")]
        found = f"{len(visible)} visible, driver {gpus.driver_version()}"
        with gpus.nvml():
            handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in visible]
            states, together = [*map(_read_state, handles)], [*_judge_together(handles)]
    except DeviceError as error:
        return [Finding("GPUs", "fail", str(error), "see nvidia-smi; restart the driver")]
    numbered = enumerate(zip(visible, states, strict=True))
    judged = [gpu_finding(f"GPU {index}", gpu, state) for index, (gpu, state) in numbered]
    return [Finding("GPUs", "ok", found), *together, *judged]


def gpu_finding(subject: str, gpu: gpus.GpuFacts, state: GpuState) -> Finding:
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
    if state.awaits_reset:
        text += ": rows of its memory are broken, and in use until it is reset"
        return Finding(subject, "warn", text, "sudo nvidia-smi --gpu-reset, or restart the machine")
    if state.compute_mode not in (None, pynvml.NVML_COMPUTEMODE_DEFAULT):
        text += ": one process alone may use it, so a gate runs one launch after the other"
        return Finding(subject, "warn", text, "sudo nvidia-smi --compute-mode=DEFAULT")
    if gpu.pcie is not None and state.most_lanes is not None and gpu.pcie[1] < state.most_lanes:
        text += f": its PCIe link has {gpu.pcie[1]} of {state.most_lanes} lanes"
        return Finding(subject, "warn", text, "seat it anew, or look for a riser that is too long")
    if state.is_persistent is False:
        text += ": without persistence mode each cell waits for the driver to load"
        return Finding(subject, "warn", text, "sudo nvidia-smi --persistence-mode=1")
    return Finding(subject, "ok", text)


def _judge_together(handles: Sequence[Any]) -> Iterator[Finding]:
    if Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists():
        text = "the MPS daemon runs kernels of other processes beside those that are timed"
        yield Finding("GPUs", "warn", text, "echo quit | nvidia-cuda-mps-control")
    apart = [
        f"{one} and {other}"
        for (one, mine), (other, its) in itertools.combinations(enumerate(handles), 2)
        if gpus.if_shown(pynvml.nvmlDeviceGetP2PStatus, mine, its, pynvml.NVML_P2P_CAPS_INDEX_READ)
        not in (None, pynvml.NVML_P2P_STATUS_OK)
    ]
    if apart:
        more = f" and {counted(len(apart) - 1, 'other pair')}" if len(apart) > 1 else ""
        text = f"GPUs {apart[0]}{more} copy to each other through the host's memory"
        advice = "see nvidia-smi topo -p2p r; virtualisation may hide it"
        yield Finding("GPUs", "warn", text, advice)


def _read_state(handle: Any) -> GpuState:
    persistence = gpus.if_shown(pynvml.nvmlDeviceGetPersistenceMode, handle)
    processes = gpus.if_shown(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    remapped = gpus.if_shown(pynvml.nvmlDeviceGetRemappedRows, handle)
    return GpuState(
        throttle_bits=gpus.if_shown(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        is_persistent=None if persistence is None else bool(persistence),
        process_ids=None if processes is None else tuple(process.pid for process in processes),
        compute_mode=gpus.if_shown(pynvml.nvmlDeviceGetComputeMode, handle),
        most_lanes=gpus.if_shown(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        awaits_reset=None if remapped is None else bool(remapped[2]),
    )
