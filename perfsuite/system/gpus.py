"""The GPUs that CUDA would show to a process, by NVML: CUDA must not start in the controller."""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pynvml

from perfsuite.errors import DeviceError

# Of 64 processors each, for the largest machine that Linux runs on.
_AFFINITY_WORDS = 128
_DEVICES = Path("/dev/nvidiactl")


class GpuFacts(NamedTuple):
    """One GPU, or one MIG instance of a GPU; None where it lacks or hides a thing."""

    name: str
    uuid: str  # "GPU-..." or "MIG-..."
    memory_bytes: int
    compute_capability: tuple[int, int]  # (9, 0) for an H100
    power_limit_w: float | None  # enforced now
    is_mig: bool | None  # cut into MIG instances
    clock_mhz: int | None = None  # for applications, of its multiprocessors, if not the default
    cores: tuple[int, ...] = ()  # of its socket; empty where NVML does not know them
    has_ecc: bool | None = None  # its memory corrects errors, which takes bandwidth
    pcie: tuple[int, int] | None = None  # (generation that it and its slot can, lanes in use)
    num_nvlinks: int = 0  # to other GPUs, that are up
    vbios: str | None = None  # version of its firmware, which sets its clocks and limits


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[GpuFacts]:
    """Return the GPUs that a process with these variables sees, in its order; [] without NVML.

    CUDA_VISIBLE_DEVICES is read as CUDA reads it: indices, or UUIDs or unambiguous beginnings of
    them, up to the first entry that names no device; none where a device is named twice. Indices
    are in NVML's order, by PCI bus, which is CUDA's wherever the GPUs are alike or
    CUDA_DEVICE_ORDER is PCI_BUS_ID. Of a GPU cut into MIG instances CUDA shows the first, or the
    first that is named, and no other GPU. Raises a DeviceError for a lost GPU.
    """
    with visible_handles(environ) as handles:
        return [_facts(handle) for handle in handles]


@contextmanager
def open_clocks() -> Iterator[Callable[[], list[float]]]:
    """Give a function for the block: clocks of the visible GPUs in MHz, [] where one is hidden."""
    with visible_handles() as handles:

        def read() -> list[float]:
            clocks: list[Any] = [
                if_shown(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)
                for handle in handles
            ]
            # A MIG instance has none of its own, and the ranks report a lost GPU.
            return [] if None in clocks else clocks

        yield read


def read_energy(index: int) -> tuple[str, float] | None:
    """Return a visible GPU's UUID, and the joules that it has used since its driver was loaded.

    None where it does not count them: before Volta (NVML API reference,
    nvmlDeviceGetTotalEnergyConsumption), and of a MIG instance.
    """
    with visible_handles() as handles:
        gpu = handles[index] if index < len(handles) else None
        used_mj = gpu and if_shown(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu)
        return None if used_mj is None else (str(pynvml.nvmlDeviceGetUUID(gpu)), used_mj / 1e3)


@contextmanager
def visible_handles(environ: Mapping[str, str] = os.environ) -> Iterator[list[Any]]:
    """Give NVML's handles of `visible_gpus`, valid in the block."""
    with nvml() as failure:
        num = pynvml.nvmlDeviceGetCount() if failure is None else 0
        visible = _choose(num, environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(num)))))
        named = [one for one in visible if pynvml.nvmlDeviceGetUUID(one).startswith("MIG-")]
        cut = [gpu for gpu in visible if gpu not in named and _is_in_mig_mode(gpu)]
        slots = [(gpu, i) for gpu in cut for i in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))]
        found = [if_shown(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, *slot) for slot in slots]
        instances = [one for one in found if one is not None]
        yield (named or instances)[:1] or [gpu for gpu in visible if gpu not in cut]


def refuse_hidden_gpus() -> None:
    """Raise a DeviceError where NVML shows no GPU although a driver has made devices for some."""
    with nvml() as failure:
        if failure is not None and _DEVICES.exists():
            raise DeviceError(
                f"this machine has GPUs, and NVML cannot show them: {failure}; give a container "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility, restart the machine after an upgrade "
                "of its driver, or choose --perf-device=cpu"
            ) from failure


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver, None without NVML."""
    with nvml() as failure:
        return str(pynvml.nvmlSystemGetDriverVersion()) if failure is None else None


@contextmanager
def nvml() -> Iterator[Exception | None]:
    """Hold NVML initialised; gives why it cannot be. Raises a DeviceError if it fails later."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield error
        return
    try:
        yield None
    except pynvml.NVMLError as error:
        found = f"a GPU does not answer: {error} (NVML); look for Xid in the kernel's log (dmesg)"
        raise DeviceError(f"{found}, and reset the GPU or restart the machine") from error
    finally:
        pynvml.nvmlShutdown()


def _choose(count: int, chosen: str) -> list[Any]:
    by_index = pynvml.nvmlDeviceGetHandleByIndex  # which a lost GPU, perhaps a hidden one, refuses
    found: dict[str, Any] = {}
    for entry in map(str.strip, chosen.split(",")):
        if entry.isdecimal():
            matches = [by_index(int(entry))] if int(entry) < count else []
        elif entry.startswith("MIG-"):
            instance = if_shown(pynvml.nvmlDeviceGetHandleByUUID, entry)
            matches = [] if instance is None else [instance]
        else:
            indices = range(count if entry.startswith("GPU-") else 0)
            shown = [gpu for index in indices if (gpu := if_shown(by_index, index)) is not None]
            matches = [gpu for gpu in shown if pynvml.nvmlDeviceGetUUID(gpu).startswith(entry)]
        if len(matches) != 1:
            break
        if (uuid := pynvml.nvmlDeviceGetUUID(matches[0])) in found:
            return []
        found[uuid] = matches[0]
    return list(found.values())


def _is_in_mig_mode(gpu: Any) -> bool | None:
    modes = if_shown(pynvml.nvmlDeviceGetMigMode, gpu)
    return None if modes is None else modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _facts(handle: Any) -> GpuFacts:
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    # A MIG instance has a name and a memory of its own; the rest is that of its GPU.
    is_instance = uuid.startswith("MIG-")
    gpu = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_instance else handle
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(gpu)
    limit_mw = if_shown(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
    clock = if_shown(pynvml.nvmlDeviceGetApplicationsClock, gpu, pynvml.NVML_CLOCK_SM)
    default = if_shown(pynvml.nvmlDeviceGetDefaultApplicationsClock, gpu, pynvml.NVML_CLOCK_SM)
    # What lies around the chip, a container may hide.
    words = if_shown(pynvml.nvmlDeviceGetCpuAffinity, gpu, _AFFINITY_WORDS) or ()
    ecc = if_shown(pynvml.nvmlDeviceGetEccMode, gpu)
    generation = if_shown(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu)
    width = if_shown(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu)
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)
    return GpuFacts(
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=uuid,
        memory_bytes=memory_info(handle).total,
        compute_capability=(major, minor),
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        is_mig=_is_in_mig_mode(gpu),
        clock_mhz=None if clock == default else clock,
        cores=tuple(i for i in range(64 * len(words)) if words[i // 64] >> i % 64 & 1),
        has_ecc=None if ecc is None else bool(ecc[0]),
        pcie=None if generation is None or width is None else (generation, width),
        vbios=if_shown(pynvml.nvmlDeviceGetVbiosVersion, gpu),
        num_nvlinks=sum(if_shown(pynvml.nvmlDeviceGetNvLinkState, gpu, i) == 1 for i in links),
    )


def memory_info(handle: Any) -> Any:
    """Return the `total` and `used` bytes of a GPU, or of the machine where they share them."""
    return if_shown(pynvml.nvmlDeviceGetMemoryInfo, handle) or psutil.virtual_memory()


def if_shown(query: Callable[..., Any], *arguments: Any) -> Any | None:
    """Return what NVML answers; None where it refuses for this device, driver or user."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


# Which figure a recipe's precision is held against.
_IN_HALF = ("bf16", "amp-bf16", "amp-fp16", "mp-bf16", "O1", "O2", "O3")
_COLUMNS = {"fp32": "fp32", "O0": "fp32", "tf32": "tf32", **dict.fromkeys(_IN_HALF, "half")}
_WITHOUT_BF16 = ("Tesla V100", "Tesla T4")


def peak_flops_per_s(gpu: str, precision: str) -> float | None:
    """Return the dense peak of a GPU in a precision; None where gpu_peaks.toml has none."""
    column = _COLUMNS.get(precision)
    if column is None or ("bf16" in precision and gpu.startswith(_WITHOUT_BF16)):
        return None
    peaks = tomllib.loads((files("perfsuite.system") / "gpu_peaks.toml").read_text())
    figure = next((row.get(column) for name, row in peaks.items() if re.fullmatch(name, gpu)), None)
    return None if figure is None else figure * 1e12
