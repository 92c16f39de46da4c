"""How one cell is trained: a frozen value that is valid by construction.

Every mistake is a `RecipeError` that names the field, the value and what is allowed.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec

from perfsuite.errors import RecipeError, SettingError
from perfsuite.records.parallel import NUMBER, PARALLEL_FORMS, ParallelPlan, parse_parallel

# The distance from 1 to the next number of the coarsest arithmetic in each: TensorFloat-32 keeps 10
# bits of the significand (NVIDIA A100 whitepaper, 2020), as float16 does, bfloat16 keeps 7, and
# float8_e4m3 keeps 3 (FP8 Formats for Deep Learning, Micikevicius et al. 2022).
EPSILONS = {
    "fp64": 2.0**-52,
    "fp32": 2.0**-23,
    "tf32": 2.0**-10,
    **dict.fromkeys(("bf16", "amp-bf16"), 2.0**-7),
    "amp-fp16": 2.0**-10,
    "mp-bf16": 2.0**-7,
    **dict.fromkeys(("fp8-tensorwise", "fp8-rowwise"), 2.0**-3),
    "O0": 2.0**-23,
    **dict.fromkeys(("O1", "O2", "O3"), 2.0**-10),
}
PRECISIONS = tuple(EPSILONS)
LOADERS = ("own", "cached")
COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a workload is trained: loader, parallel mode, precision, checkpointing and step.

    Attributes:
        loader: "own", or "cached": the first batches over and over, as if loading were free; for
            `perfsuite compare` and `sweep` alone.
        num_workers: Loader processes of each rank; 0 loads in the rank itself.
        persistent_workers: Keep the loader processes from one epoch to the next.
        pin_memory: Load into page-locked memory.
        prefetch_factor: Batches that each worker loads ahead; None is torch's default of 2.
        non_blocking: Copy to the device without waiting.
        parallel: One of `PARALLEL_FORMS`.
        precision: One of `PRECISIONS`; O0 to O3 are Apex-like, fp8 is amp-bf16 with torchao's
            linear layers, and with mp-bf16 FSDP gathers float32 parameters in bfloat16.
        checkpointing: "none", "every-block", "segments:C" or "selective".
        micro_batch_size: Samples that one rank's loader puts in a batch; None is the workload's.
        grad_accumulation_steps: Micro-batches of one optimizer step.
        clip_grad_norm: Greatest norm of all gradients together; None does not clip.
        compile: Run the model through torch.compile.
        bucket_cap_mb: DDP's bucket size in MiB; None is torch's default.
        static_graph: DDP's promise that the graph never changes.
        gradient_as_bucket_view: DDP's gradients are views of its buckets.
        find_unused_parameters: DDP looks for parameters that took no part in the loss.
        comm_hook: What DDP does to a bucket before it is reduced, one of `COMM_HOOKS`.
    """

    loader: str = "own"
    num_workers: int = 0
    persistent_workers: bool = False
    pin_memory: bool = False
    prefetch_factor: int | None = None
    non_blocking: bool = False
    parallel: str = "single"
    precision: str = "fp32"
    checkpointing: str = "none"
    micro_batch_size: int | None = None
    grad_accumulation_steps: int = 1
    clip_grad_norm: float | None = None
    compile: bool = False
    bucket_cap_mb: float | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    comm_hook: str = "none"

    def __post_init__(self) -> None:
        for name, (allowed, is_allowed) in _ALLOWED.items():
            value = getattr(self, name)
            if not is_allowed(value):
                raise RecipeError(f"{name} is {value!r}; use {allowed}")
        properties = self.plan.properties
        for name in ("persistent_workers", "prefetch_factor"):
            if self.num_workers == 0 and getattr(self, name):
                found = f"{name}={getattr(self, name)!r} needs loader workers, and num_workers is 0"
                raise RecipeError(f"{found}; set num_workers to 1 or more, or leave {name} out")
        changed = [name for name in _DDP_OPTIONS if getattr(self, name) != getattr(Recipe, name)]
        if changed and not properties.takes_ddp_options:
            found = f"{changed[0]}={getattr(self, changed[0])!r} is an option of"
            found += f" DistributedDataParallel, and parallel is {self.parallel!r}"
            raise RecipeError(f"{found}; use parallel='ddp:2' or leave {changed[0]} out")
        clash = f"cannot be combined with parallel {self.parallel!r}"
        if self.has_float8 and self.plan.mode == "tp":
            why = "torchao's linear layers are not split; use precision='amp-bf16', or another mode"
            raise RecipeError(f"precision {self.precision!r} {clash}: {why}")
        if self.precision == "mp-bf16" and self.plan.mode not in ("fsdp", "hsdp"):
            why = "FSDP casts the parameters as it gathers them"
            advice = "use parallel='fsdp:2' or 'hsdp:2x2', or precision='amp-bf16'"
            raise RecipeError(f"precision {self.precision!r} {clash}: {why}; {advice}")
        if self.compile and (properties.cuts_model or properties.runs_threads):
            # Module.compile binds the compiled call to one instance, and replicas are copies of it.
            why = "the model is cut into stages"
            if properties.runs_threads:
                why = "the replicas of nn.DataParallel would all call the compiled first one"
            raise RecipeError(f"compile=True {clash}: {why}; use compile=False")

    @property
    def plan(self) -> ParallelPlan:
        """The parsed parallel mode."""
        return parse_parallel(self.parallel)

    @property
    def has_float8(self) -> bool:
        """Whether linear layers multiply numbers of 8 bits."""
        return self.precision.startswith("fp8-")

    @property
    def num_segments(self) -> int | None:
        """The C of "segments:C", None for any other checkpointing."""
        prefix, _, count = self.checkpointing.partition(":")
        return int(count) if prefix == "segments" else None

    def require_own_loader(self) -> None:
        """Raise a RecipeError where loading is not the workload's own."""
        if self.loader != "own":
            kind = f"loader={self.loader!r} trains on a few batches over and over"
            place = "is for perfsuite compare and perfsuite sweep alone"
            raise RecipeError(f"{kind}, and {place}; use loader='own'")

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, as plain values."""
        return asdict(self)


def is_int_from(smallest: int) -> Callable[[Any], bool]:
    """Return a test for whole numbers from `smallest` on; a bool is not one."""
    return lambda it: isinstance(it, int) and not isinstance(it, bool) and it >= smallest


def optional(is_allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test that also allows None."""
    return lambda value: value is None or is_allowed(value)


def _is_positive(it: Any) -> bool:
    return isinstance(it, int | float) and not isinstance(it, bool) and 0 < it < float("inf")


def _is_checkpoint(value: Any) -> bool:
    forms = rf"none|every-block|selective|segments:(?!0){NUMBER}"
    return isinstance(value, str) and re.fullmatch(forms, value) is not None


_DDP_OPTIONS = (
    *("bucket_cap_mb", "static_graph", "gradient_as_bucket_view", "find_unused_parameters"),
    "comm_hook",
)
# Each field with what it may be, in words and as a test.
_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("persistent_workers", "pin_memory", "non_blocking", "compile", *_DDP_OPTIONS[1:4]),
        ("True or False", lambda value: isinstance(value, bool)),
    ),
    "loader": (f"one of {', '.join(LOADERS)}", LOADERS.__contains__),
    "num_workers": ("a whole number from 0", is_int_from(0)),
    "parallel": (f"one of {PARALLEL_FORMS}", lambda value: isinstance(value, str)),
    "precision": (f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__),
    "checkpointing": ("none, every-block, segments:C with C from 1, or selective", _is_checkpoint),
    **dict.fromkeys(
        ("prefetch_factor", "micro_batch_size"),
        ("None or a whole number from 1", optional(is_int_from(1))),
    ),
    "grad_accumulation_steps": ("a whole number from 1", is_int_from(1)),
    "clip_grad_norm": ("None or a number above 0", optional(_is_positive)),
    "bucket_cap_mb": ("None or a number of MiB above 0", optional(_is_positive)),
    "comm_hook": (f"one of {', '.join(COMM_HOOKS)}", COMM_HOOKS.__contains__),
}


def parse_recipe(option: str, pairs: Sequence[str], *, of: Recipe | None = None) -> Recipe:
    """Return the recipe that `FIELD=VALUE` texts describe; `option` is for messages.

    `of` has the fields that are not named; the default recipe unless given. Raises a SettingError
    for a text that is no such pair, and a RecipeError for a recipe that is not allowed.

    >>> recipe = parse_recipe("--a", ["num_workers=2", "persistent_workers=true"])
    >>> recipe.num_workers, recipe.persistent_workers, recipe.precision
    (2, True, 'fp32')
    """
    types = get_type_hints(Recipe)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise SettingError(f"{option} is {pair!r}; use FIELD=VALUE, such as precision=amp-bf16")
        if name not in types:
            advice = f"use one of {', '.join(types)}"
            raise SettingError(f"{option} names {name!r}, which is no field of a recipe; {advice}")
        if name in values:
            raise SettingError(f"{option} gives {name} twice; give it once")
        is_none = text.lower() == "none" and NoneType in get_args(types[name])
        try:
            values[name] = None if is_none else msgspec.convert(text, types[name], strict=False)
        except msgspec.ValidationError as error:
            allowed, _ = _ALLOWED[name]
            raise SettingError(f"{option} gives {name} as {text!r}; use {allowed}") from error
    return replace(of or Recipe(), **values)


def describe_recipe(recipe: Recipe) -> str:
    """Return the fields that differ from their defaults, as a command line spells them."""
    changed = (
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in recipe.as_dict().items()
        if value != getattr(Recipe, name)
    )
    return " ".join(changed) or "the default recipe"
