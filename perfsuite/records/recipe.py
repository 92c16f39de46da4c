"""What one cell trains: a `Recipe`, and the parallel mode that it names.

Frozen, keyword-only values, valid by construction; every mistake is a `RecipeError` that names
the field, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from perfsuite.errors import RecipeError

PRECISIONS = (
    "fp64",
    "fp32",
    "tf32",
    "bf16",
    "amp-bf16",
    "amp-fp16",
    "O0",
    "O1",
    "O2",
    "O3",
)
COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")
PIPELINE_SCHEDULES = ("gpipe", "1f1b", "interleaved")
PARALLEL_FORMS = (
    "single, dp:N, ddp:N, fsdp:N, hsdp:RxS, zero1:N, tp:N, pp:N[:gpipe|1f1b|interleaved], "
    "mp:N, horovod-like:N, horovod:N"
)

# Fewer parts than this and the mode would do nothing: DataParallel over one device and a split
# into one part both call the plain module. One-process DDP, FSDP and Horovod are real.
_SMALLEST_SIZE = {
    "dp": 2,
    "ddp": 1,
    "fsdp": 1,
    "zero1": 1,
    "tp": 2,
    "pp": 2,
    "mp": 2,
    "horovod-like": 1,
    "horovod": 1,
}
_SHARES_ONE_BATCH = ("tp", "pp", "mp")
# As many digits as a size can need: int() refuses thousands of them.
_NUMBER = r"(?:0|[1-9][0-9]{0,8})"

Mode = Literal[
    "single", "dp", "ddp", "fsdp", "hsdp", "zero1", "tp", "pp", "mp", "horovod-like", "horovod"
]
Activity = Literal["train", "load", "evaluate", "all_reduce"]


@dataclass(frozen=True, kw_only=True)
class ParallelPlan:
    """A parsed `Recipe.parallel`.

    Attributes:
        mode: The word before the colon.
        size: The N of the mode: ranks, or devices for "dp". 1 for "single".
        world_size: Processes that the cell starts; 1 for "single" and "dp".
        data_parallel_size: Shards into which the training data are divided.
        num_shards: For "hsdp" the S of RxS: ranks that share one copy of the parameters.
        schedule: For "pp" the pipeline schedule, else None.
    """

    mode: Mode
    size: int
    world_size: int
    data_parallel_size: int
    num_shards: int = 1
    schedule: str | None = None

    @property
    def needs_group(self) -> bool:
        """Whether the cell trains with torch.distributed, even over one rank."""
        return self.mode not in ("single", "dp")


def parse_parallel(text: str) -> ParallelPlan:
    """Return the plan that a parallel mode's text names.

    Raises:
        RecipeError: The text has none of the allowed forms, or a size that the mode cannot have.

    >>> parse_parallel("ddp:2").world_size, parse_parallel("hsdp:2x3").world_size
    (2, 6)
    >>> parse_parallel("pp:4").schedule, parse_parallel("tp:2").data_parallel_size
    ('1f1b', 1)
    """
    if text == "single":
        return ParallelPlan(mode="single", size=1, world_size=1, data_parallel_size=1)
    if match := re.fullmatch(rf"hsdp:({_NUMBER})x({_NUMBER})", text):
        replicas, shards = int(match[1]), int(match[2])
        if replicas < 1 or shards < 1:
            raise RecipeError(
                f"parallel {text!r} has an empty mesh; "
                "use hsdp:RxS with R replicas and S shards of at least 1, such as hsdp:2x2"
            )
        size = replicas * shards
        return ParallelPlan(
            mode="hsdp", size=size, world_size=size, data_parallel_size=size, num_shards=shards
        )
    match = re.fullmatch(rf"([a-z0-9-]+):({_NUMBER})(?::([a-z0-9]+))?", text)
    mode = match[1] if match else ""
    if match is None or mode not in _SMALLEST_SIZE or (match[3] and mode != "pp"):
        raise RecipeError(f"parallel {text!r} is not a known mode; use one of {PARALLEL_FORMS}")
    size = int(match[2])
    if size < _SMALLEST_SIZE[mode]:
        smallest = _SMALLEST_SIZE[mode]
        raise RecipeError(
            f"parallel {text!r} has a size of {size}, and {mode} needs at least {smallest}; "
            f"use {mode}:{max(smallest, 2)}"
        )
    schedule = match[3] or ("1f1b" if mode == "pp" else None)
    if schedule is not None and schedule not in PIPELINE_SCHEDULES:
        raise RecipeError(
            f"parallel {text!r} names the pipeline schedule {schedule!r}; "
            f"use one of {', '.join(PIPELINE_SCHEDULES)}"
        )
    return ParallelPlan(
        mode=mode,  # type: ignore[arg-type]  # one of the keys of _SMALLEST_SIZE
        size=size,
        world_size=1 if mode == "dp" else size,
        data_parallel_size=1 if mode == "dp" or mode in _SHARES_ONE_BATCH else size,
        schedule=schedule,
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a workload is trained: loader, parallel mode, precision, checkpointing and step.

    Attributes:
        num_workers: Loader processes of each rank; 0 loads in the rank itself.
        persistent_workers: Keep the loader processes from one epoch to the next.
        pin_memory: Load into page-locked memory.
        prefetch_factor: Batches that each worker loads ahead; None is torch's default of 2.
        non_blocking: Copy to the device without waiting.
        parallel: One of `PARALLEL_FORMS`.
        precision: One of `PRECISIONS`; O0 to O3 are Apex-like.
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
        for name in _BOOLEANS:
            _require(self, name, "True or False", lambda value: isinstance(value, bool))
        _require(self, "num_workers", "a whole number from 0", is_int_from(0))
        _require(self, "grad_accumulation_steps", "a whole number from 1", is_int_from(1))
        _require(self, "prefetch_factor", "None or a whole number from 1", optional(is_int_from(1)))
        _require(
            self, "micro_batch_size", "None or a whole number from 1", optional(is_int_from(1))
        )
        _require(self, "clip_grad_norm", "None or a number above 0", optional(_is_positive))
        _require(self, "bucket_cap_mb", "None or a number of MiB above 0", optional(_is_positive))
        _require(self, "precision", f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__)
        _require(self, "comm_hook", f"one of {', '.join(COMM_HOOKS)}", COMM_HOOKS.__contains__)
        _require(
            self,
            "checkpointing",
            "none, every-block, segments:C with C from 1, or selective",
            lambda value: _is_checkpointing(value),
        )
        _require(self, "parallel", f"one of {PARALLEL_FORMS}", lambda value: isinstance(value, str))
        self._check_combinations(parse_parallel(self.parallel))

    def _check_combinations(self, plan: ParallelPlan) -> None:
        if self.num_workers == 0:
            for name in ("persistent_workers", "prefetch_factor"):
                if getattr(self, name):
                    raise RecipeError(
                        f"{name}={getattr(self, name)!r} needs loader workers, and num_workers is "
                        f"0; set num_workers to 1 or more, or leave {name} out"
                    )
        changed = [
            field.name
            for field in dataclasses.fields(self)
            if field.name in _DDP_OPTIONS and getattr(self, field.name) != field.default
        ]
        if changed and plan.mode not in ("ddp", "zero1"):
            raise RecipeError(
                f"{changed[0]}={getattr(self, changed[0])!r} is an option of "
                f"DistributedDataParallel, and parallel is {self.parallel!r}; "
                f"use parallel='ddp:2' or leave {changed[0]} out"
            )
        if plan.mode in ("pp", "mp") and self.compile:
            raise RecipeError(
                f"compile=True cannot be combined with parallel {self.parallel!r}: the model is "
                "cut into stages; use compile=False"
            )

    @property
    def plan(self) -> ParallelPlan:
        """The parsed parallel mode."""
        return parse_parallel(self.parallel)

    @property
    def num_segments(self) -> int | None:
        """The C of "segments:C", None for any other checkpointing."""
        prefix, _, count = self.checkpointing.partition(":")
        return int(count) if prefix == "segments" else None

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, as plain values."""
        return dataclasses.asdict(self)


_BOOLEANS = (
    "persistent_workers",
    "pin_memory",
    "non_blocking",
    "compile",
    "static_graph",
    "gradient_as_bucket_view",
    "find_unused_parameters",
)
_DDP_OPTIONS = (
    "bucket_cap_mb",
    "static_graph",
    "gradient_as_bucket_view",
    "find_unused_parameters",
    "comm_hook",
)


def _require(recipe: Recipe, name: str, allowed: str, is_allowed: Callable[[Any], bool]) -> None:
    value = getattr(recipe, name)
    if not is_allowed(value):
        raise RecipeError(f"{name} is {value!r}; use {allowed}")


def is_int_from(smallest: int) -> Callable[[Any], bool]:
    """Return whether a value is a whole number from `smallest` on; True is not one."""
    return lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and value >= smallest
    )


def _is_positive(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    )


def optional(is_allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return whether a value is None or allowed."""
    return lambda value: value is None or is_allowed(value)


def _is_checkpointing(value: Any) -> bool:
    if value in ("none", "every-block", "selective"):
        return True
    return isinstance(value, str) and re.fullmatch(rf"segments:(?!0){_NUMBER}", value) is not None
