"""What a speed depends on besides the code: environment variables of torch, too."""

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from perfsuite.errors import installed_version
from perfsuite.system.environment import Environment, cpu_model, describe_gpu, speed_variables
from perfsuite.system.gpus import driver_version, visible_gpus

# torch loads them from packages of their own, which may be replaced without it.
_CUDA_PACKAGES = ("nvidia-cublas-cu12", "nvidia-cublas", "triton")


def describe_environment(device: str, environ: Mapping[str, str] = os.environ) -> Environment:
    """Return the environment of this process; on "cpu" without what belongs to accelerators."""
    on_cuda = device == "cuda"
    cudnn = torch.backends.cudnn.version() if on_cuda else None  # type: ignore[no-untyped-call]
    has_nccl = on_cuda and torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    return Environment(
        accelerators=tuple(map(describe_gpu, visible_gpus(environ))) if on_cuda else (),
        driver=driver_version() if on_cuda else None,
        cuda=torch.version.cuda if on_cuda else None,
        cudnn=None if cudnn is None else str(cudnn),
        nccl=".".join(map(str, nccl)) or None,
        torch=f"{torch.__version__} ({torch.version.git_version[:10]})",
        cpu=cpu_model(),
        # Of the machine, because a rank is pinned to a part of it.
        num_cores=os.cpu_count() or 1,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        knobs=_knobs(on_cuda) | speed_variables(environ),
    )


def _knobs(on_cuda: bool) -> dict[str, str]:
    # Their parts (matmul, conv) are set at import, where a type checker does not see them.
    mkldnn: Any = torch.backends.mkldnn
    cudnn: Any = torch.backends.cudnn
    knobs: dict[str, object] = {
        "num_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    precisions: dict[str, Any] = {"mkldnn.matmul": mkldnn.matmul, "mkldnn.conv": mkldnn.conv}
    if on_cuda:
        found = {name: installed_version(name) for name in _CUDA_PACKAGES}
        knobs |= {name: version for name, version in found.items() if version is not None}
        precisions |= {"cuda.matmul": torch.backends.cuda.matmul, "cudnn.conv": cudnn.conv}
        knobs |= {f"cudnn.{name}": getattr(cudnn, name) for name in ("benchmark", "deterministic")}
    # The older allow_tf32 flags cannot be read once any of these was set.
    knobs |= {f"{name}.fp32_precision": part.fp32_precision for name, part in precisions.items()}
    return {name: str(value) for name, value in knobs.items()}
