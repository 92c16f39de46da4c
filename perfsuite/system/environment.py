"""What a speed depends on beside the code, as far as it is known without torch."""

import fnmatch
import hashlib
import platform
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfsuite.errors import installed_version
from perfsuite.system.gpus import GpuFacts, driver_version, visible_gpus
from perfsuite.system.untrusted import printable
from perfsuite.units import counted, format_bytes

# Variables that change the speed of torch, of its allocators, or of a library it calls.
_VARIABLES = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_MPS_*"),
    *("CUBLAS*", "CUDNN_*", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("TORCH_BLAS_PREFER_CUBLASLT", "TORCH_CUDNN_*", "PYTORCH_*ALLOC_CONF", "PYTORCH_TUNABLEOP_*"),
    *("GLOO_*", "NCCL_*", "TORCH_NCCL_*", "TORCH_DIST_USE_NCCL2", "TORCH_DISTRIBUTED_DEBUG"),
    *("KMP_*", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "LD_PRELOAD", "TORCHINDUCTOR_*", "TRITON_*"),
)
# These change no speed. Scikit-learn sets the first two in any process that imports it; the others
# say where files lie, in a folder of each launch or each group of ranks.
_IDLE_VARIABLES = (
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TRITON_CACHE_DIR"),
)
# Set by ranks that share a machine themselves. A cell of one process does not set it, and must
# still have the environment of the cells that it is compared with.
_OWN_VARIABLES = {
    "GLOO_SOCKET_IFNAME": ("lo",),
    # torchrun sets it for its workers to what is torch's default.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("1", "3"),
}
# Characters of a line on environments: a file may hold a name of any length.
MOST_SHOWN = 400

# Where a process id means one process: containers may share temporary files and a host's name.
_IDS = Path("/proc/self/ns/pid")
_PLACE = f"{platform.node()} {_IDS.stat().st_ino if _IDS.exists() else ''}"
PID_NAMESPACE = hashlib.sha256(_PLACE.encode()).hexdigest()[:6]


def describe_host(environ: Mapping[str, str], num_cores: int) -> "Environment":
    """Return the environment of a whole session, whatever its tests measure."""
    # CUDA's libraries and torch's settings, which only a rank knows, are in a cell's fingerprint.
    return Environment(
        accelerators=tuple(map(describe_gpu, visible_gpus(environ))),
        driver=driver_version(),
        cuda=None,
        cudnn=None,
        nccl=None,
        torch=installed_version("torch") or "not installed",
        cpu=cpu_model(),
        num_cores=num_cores,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        knobs={"numpy": installed_version("numpy") or "not installed"} | speed_variables(environ),
    )


def describe_gpu(gpu: GpuFacts) -> str:
    """Return what a GPU's speed depends on, beside its driver."""
    limit = "no power limit" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
    mig = {None: "no MIG", False: "MIG off", True: "MIG on"}[gpu.is_mig]
    parts = [
        *(gpu.name, format_bytes(gpu.memory_bytes), limit, mig),
        {None: None, False: "ECC off", True: "ECC on"}[gpu.has_ecc],
        None if gpu.pcie is None else "PCIe {} x{}".format(*gpu.pcie),
        counted(gpu.num_nvlinks, "NVLink") if gpu.num_nvlinks else None,
        None if gpu.vbios is None else f"VBIOS {gpu.vbios}",
        None if gpu.clock_mhz is None else f"clocks set to {gpu.clock_mhz} MHz",
    ]
    return ", ".join(filter(None, parts))


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the processor, or of its architecture where the kernel has no name."""
    found = re.search(r"^\s*model name\s*:(.*)", cpuinfo.read_text(), re.MULTILINE)
    # An ARM kernel lists part numbers and no name.
    return found[1].strip() if found else platform.machine()


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change a speed, in the order of their names."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in _VARIABLES)
        and name not in _IDLE_VARIABLES
        and value not in _OWN_VARIABLES.get(name, ())
    }


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that a speed depends on beside the code: runs compare only where all is equal."""

    accelerators: tuple[str, ...]  # each GPU as `describe_gpu` says it, in order
    driver: str | None
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    torch: str
    cpu: str
    num_cores: int
    python: str
    knobs: dict[str, str]  # threads, TF32, cuDNN, allocator and NCCL variables

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that differ wherever any field does."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]


def difference(base: Environment | str, head: Environment | str) -> str:
    """Return what differs by field, "driver 570 -> 580"; by fingerprint if a side has no fields."""
    names = [one if isinstance(one, str) else one.fingerprint for one in (base, head)]
    if names[0] == names[1]:
        return ""
    found = []
    if isinstance(base, Environment) and isinstance(head, Environment):
        old, new = _parts(base), _parts(head)
        for name in dict.fromkeys((*old, *new)):
            if any(sides := (old[name] - new[name], new[name] - old[name])):
                gone, come = (" and ".join(side) or "none" for side in sides)
                found.append(f"{name} {gone} -> {come}")
    text = ", ".join(found) or " -> ".join(names)
    return printable(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")


def _parts(one: Environment) -> defaultdict[str, Counter[str]]:
    names = ("driver", "CUDA", "cuDNN", "NCCL", "torch", "CPU", "num_cores", "Python")
    fields = {name: getattr(one, name.lower()) for name in names}
    gpus = dict.fromkeys(", ".join(one.accelerators).split(", "))  # names, memory, power limit, ...
    fields |= {"num_gpus": len(one.accelerators), "GPU": ", ".join(gpus)} | one.knobs
    parts = {name: Counter(str(value or "none").split(", ")) for name, value in fields.items()}
    return defaultdict(Counter, parts)


# From the CI services' own lists of predefined variables: GitHub, Woodpecker and Azure name the
# event; the variables of GitLab, Jenkins and others are there, and not "false", for it alone.
_PULL_REQUEST_EVENTS = {
    "GITHUB_EVENT_NAME": ("pull_request", "pull_request_target", "merge_group"),
    "CI_PIPELINE_EVENT": ("pull_request",),
    "BUILD_REASON": ("PullRequest",),
}
_PULL_REQUEST_NUMBERS = (
    *("CI_MERGE_REQUEST_IID", "CHANGE_ID", "CIRCLE_PULL_REQUEST", "BITBUCKET_PR_ID"),
    *("DRONE_PULL_REQUEST", "CIRRUS_PR", "APPVEYOR_PULL_REQUEST_NUMBER"),
    *("BUILDKITE_PULL_REQUEST", "TRAVIS_PULL_REQUEST"),
)


def is_pull_request(environ: Mapping[str, str]) -> bool:
    """Whether a CI service says that it builds a pull request or a merge queue's candidate."""
    return any(environ.get(name) in events for name, events in _PULL_REQUEST_EVENTS.items()) or any(
        environ.get(name, "") not in ("", "false") for name in _PULL_REQUEST_NUMBERS
    )
