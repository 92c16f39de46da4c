"""Whether a machine can run a recipe at all, and if not, why."""

from typing import NamedTuple

from perfsuite.errors import missing_package
from perfsuite.records.recipe import Recipe
from perfsuite.units import counted


class Hardware(NamedTuple):
    """The machine as far as it decides whether a cell can run."""

    device: str  # "cpu" or "cuda"
    num_gpus: int = 0
    num_cores: int | None = None  # that the ranks may use; None where unknown
    compute_capability: tuple[int, int] | None = None  # of the first GPU, (9, 0) for an H100
    has_horovod: bool = False
    has_torchao: bool = False


# A rank holds half a GiB and more; hundreds of them on a few processors starve the machine before
# anything is measured. Four a processor still lets two cores exercise a 2x2 mesh.
_MAX_RANKS_PER_CORE = 4
# Ampere, the first with TensorFloat-32 units (NVIDIA A100 Tensor Core GPU Architecture, 2020).
_TF32_CAPABILITY = (8, 0)
# Ada and Hopper, as torchao's float8 training asks for them (torchao/float8/README.md).
_FLOAT8_CAPABILITIES = {"fp8-tensorwise": (8, 9), "fp8-rowwise": (9, 0)}


def why_not_exercised(recipe: Recipe, hardware: Hardware) -> str | None:
    """Return why this machine would measure something else than the recipe, or None."""
    plan = recipe.plan
    mode = plan.properties
    on_cuda = hardware.device == "cuda"
    if mode.runs_threads and not on_cuda:
        why_not = "nn.DataParallel silently runs the plain module on cpu; it needs a CUDA device"
        return f"parallel {recipe.parallel!r}: {why_not}"
    needs = what_ranks_need(plan.world_size, hardware)
    if mode.runs_threads and 1 < hardware.num_gpus < plan.size:
        needs = f"{plan.size} GPUs, and {hardware.num_gpus} are here"
    elif needs is None and mode.needs_horovod and not hardware.has_horovod:
        advice = f"horovod-like:{plan.size} does the same with torch.distributed"
        needs = f"the package horovod, which cannot be imported; {advice}"
    if needs is not None:
        return f"parallel {recipe.parallel!r} needs {needs}"
    if recipe.precision == "tf32" and (found := _what_is_below(_TF32_CAPABILITY, hardware)):
        needed_gpu = "an NVIDIA GPU of compute capability 8.0 or more"
        return f"precision 'tf32' needs {needed_gpu}; this cell runs on {found}"
    if recipe.has_float8 and not hardware.has_torchao:
        return f"precision {recipe.precision!r}: {missing_package('torchao', 'fp8')}"
    if recipe.pin_memory and not on_cuda:
        return "pin_memory=True pins nothing without an accelerator; this cell runs on cpu"
    return None


def why_not_timed(recipe: Recipe, hardware: Hardware) -> str | None:
    """Return why a time here would be one of something else, though the numerics are right."""
    needed = _FLOAT8_CAPABILITIES.get(recipe.precision)
    if needed is None or (found := _what_is_below(needed, hardware)) is None:
        return None
    return (
        f"precision {recipe.precision!r} has no time here: 8-bit products need an NVIDIA GPU of "
        f"compute capability {needed[0]}.{needed[1]} or more, and torchao emulates them on {found}"
    )


def _what_is_below(needed: tuple[int, int], hardware: Hardware) -> str | None:
    """What lacks a compute capability here, None where the GPUs have it."""
    found = hardware.compute_capability
    if hardware.device != "cuda":
        return "cpu"
    return f"compute capability {found}" if found is None or found < needed else None


def what_ranks_need(world_size: int, hardware: Hardware) -> str | None:
    """Return what so many ranks need beyond what is here, or None."""
    num_gpus, num_cores = hardware.num_gpus, hardware.num_cores
    if hardware.device == "cuda":
        if world_size <= num_gpus:
            return None
        are = "is" if num_gpus == 1 else "are"
        return f"{counted(world_size, 'GPU')}, and {num_gpus} {are} here"
    if num_cores and world_size > (most := _MAX_RANKS_PER_CORE * num_cores):
        most_ranks = f"{num_cores} cores take at most {most}, {_MAX_RANKS_PER_CORE} each"
        return f"{world_size} ranks, and {most_ranks}"
    return None
