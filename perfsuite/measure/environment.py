"""What a speed depends on beside the code, as a rank finds it.

Must not know what is measured. This is the one place below the command line that reads environment
variables: those that torch and its libraries obey are part of what it describes.
"""

from __future__ import annotations

import fnmatch
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from perfsuite.measure.devices import GpuFacts, driver_version, visible_gpus
from perfsuite.records import Environment
from perfsuite.units import format_bytes

# Variables that change the speed of torch, of its allocators, or of a library it calls.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "GLOO_*",
    "KMP_*",
    "LD_PRELOAD",
    "MKL_NUM_THREADS",
    "NCCL_*",
    "OMP_NUM_THREADS",
    "PYTORCH_*ALLOC_CONF",
    "TORCH_NCCL_*",
)


def describe_environment(device: str, environ: Mapping[str, str] = os.environ) -> Environment:
    """Return the environment of this process; equal on all ranks of a machine with equal GPUs.

    On "cpu" the accelerators, the driver and the CUDA libraries are left out, since no number
    depends on them there; the torch build still names the CUDA it was built with.

    Args:
        device: "cpu" or "cuda".
        environ: The environment variables.
    """
    on_cuda = device == "cuda"
    cudnn = torch.backends.cudnn.version() if on_cuda else None  # type: ignore[no-untyped-call]
    return Environment(
        accelerators=tuple(map(_describe_gpu, visible_gpus(environ))) if on_cuda else (),
        driver=driver_version() if on_cuda else None,
        cuda=torch.version.cuda if on_cuda else None,
        cudnn=None if cudnn is None else str(cudnn),
        nccl=_nccl_version() if on_cuda else None,
        torch=f"{torch.__version__} ({torch.version.git_version[:10]})",
        cpu=_cpu_model(),
        # The machine's: a rank's own affinity is pinned to a part of it.
        num_cores=os.cpu_count() or 1,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        knobs=_knobs(on_cuda) | _set_variables(environ),
    )


def _describe_gpu(gpu: GpuFacts) -> str:
    limit = "no power limit" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
    mig = {None: "no MIG", False: "MIG off", True: "MIG on"}[gpu.is_mig]
    return f"{gpu.name}, {format_bytes(gpu.memory_bytes)}, {limit}, {mig}"


def _nccl_version() -> str | None:
    if not torch.distributed.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    for line in cpuinfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    # An ARM kernel lists part numbers and no name.
    return platform.machine()


def _knobs(on_cuda: bool) -> dict[str, str]:
    # Their parts (matmul, conv) are put there at import, out of sight of a type checker.
    mkldnn: Any = torch.backends.mkldnn
    cudnn: Any = torch.backends.cudnn
    knobs: dict[str, object] = {
        "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    precisions: dict[str, Any] = {"mkldnn.matmul": mkldnn.matmul, "mkldnn.conv": mkldnn.conv}
    if on_cuda:
        precisions |= {"cuda.matmul": torch.backends.cuda.matmul, "cudnn.conv": cudnn.conv}
        knobs |= {
            "cudnn.benchmark": cudnn.benchmark,
            "cudnn.deterministic": cudnn.deterministic,
        }
    # The older allow_tf32 flags cannot be read any more once somebody has set these.
    knobs |= {f"{name}.fp32_precision": part.fp32_precision for name, part in precisions.items()}
    return {name: str(value) for name, value in knobs.items()}


def _set_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environ.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _VARIABLES)
    }
