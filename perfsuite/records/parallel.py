"""The parallel modes: one row for each, with every property that other code asks about.

A new mode is a row here, a `Strategy` that the row names, and a test.
"""

import math
import re
from typing import NamedTuple

from perfsuite.errors import RecipeError

PIPELINE_SCHEDULES = ("gpipe", "1f1b", "interleaved")
# No more digits than a size can need: int() refuses thousands of them.
NUMBER = r"(?:0|[1-9][0-9]{0,8})"
# What the first word of an axis's name says: its ranks have samples of their own, or share them.
# torchtitan and Megatron-LM use most of these names.
_BATCH_AXES = ("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard")
_MODEL_AXES = ("tp", "cp", "sp", "ep", "tensor", "context", "sequence", "expert", "model")


class ParallelMode(NamedTuple):
    """What is true of one form of `Recipe.parallel`."""

    form: str  # as people write it, such as "ddp:N"
    strategy: str  # the class that trains so, "module:class" in `worker.training.parallel`
    # With fewer parts the mode would do nothing: DataParallel over one device and a split into one
    # part both call the plain module. DDP, FSDP and Horovod over one process are real.
    smallest_size: int = 1
    is_one_process: bool = False  # no process group, whatever its size
    runs_threads: bool = False  # one process with a thread for each replica, as nn.DataParallel
    shares_batch: bool = False  # all ranks work on one; otherwise each has a shard of the data
    splits_parameters: bool = False  # a rank steps parameters, or parts, that no other rank has
    splits_tensors: bool = False  # those are parts of one tensor, and not whole parameters
    resizes_storages: bool = False  # of parameters, within a step
    cuts_model: bool = False  # into stages, and a rank waits for the stage before its own
    chunks_per_rank: int | None = None  # parts of a batch for each; None where it stays whole
    default_schedule: str | None = None  # of a pipeline, unless the text names one
    takes_ddp_options: bool = False  # those of a recipe for DistributedDataParallel
    needs_horovod: bool = False  # the ranks import the package
    why_no_reduction: str | None = None  # why gradients are no sum over ranks to compare with (T0)


_DDP = ParallelMode(form="ddp:N", strategy="data_parallel:DDP", takes_ddp_options=True)
_FSDP = ParallelMode(
    form="fsdp:N",
    strategy="fsdp:FSDP",
    splits_parameters=True,
    splits_tensors=True,
    resizes_storages=True,
)
_MP = ParallelMode(
    form="mp:N",
    strategy="pipeline:Pipeline",
    smallest_size=2,
    shares_batch=True,
    splits_parameters=True,
    cuts_model=True,
)
_PP_FORM = f"pp:N[:{'|'.join(PIPELINE_SCHEDULES)}]"
_HOROVOD = ParallelMode(form="horovod-like:N", strategy="horovod:HorovodLike")
PARALLEL_MODES: dict[str, ParallelMode] = {
    "single": ParallelMode(
        form="single",
        strategy="strategy:Strategy",
        is_one_process=True,
        why_no_reduction="one process reduces nothing",
    ),
    "dp": ParallelMode(
        form="dp:N",
        strategy="data_parallel:DP",
        smallest_size=2,
        is_one_process=True,
        runs_threads=True,
        why_no_reduction="the replicas of nn.DataParallel are one process",
    ),
    "ddp": _DDP,
    "fsdp": _FSDP,
    "hsdp": _FSDP._replace(form="hsdp:RxS", strategy="fsdp:HSDP"),
    "zero1": _DDP._replace(form="zero1:N", strategy="data_parallel:ZeRO1"),
    "zero2": _FSDP._replace(form="zero2:N", strategy="fsdp:ZeRO2"),
    "tp": ParallelMode(
        form="tp:N",
        strategy="tensor_parallel:TensorParallel",
        smallest_size=2,
        shares_batch=True,
        splits_parameters=True,
        splits_tensors=True,
        why_no_reduction="a split layer is no sum of the ranks' gradients",
    ),
    # With m chunks on p ranks a schedule idles (p-1)/(m+p-1) of the time (GPipe, Huang et al.
    # 2019): on two ranks a third with one chunk a rank, a fifth with two. More chunks would leave
    # the small batches of a benchmark no samples to divide.
    "pp": _MP._replace(form=_PP_FORM, chunks_per_rank=2, default_schedule="1f1b"),
    "mp": _MP,
    "horovod-like": _HOROVOD,
    "horovod": _HOROVOD._replace(form="horovod:N", strategy="horovod:Horovod", needs_horovod=True),
    # What the user's function may do, which is anything that FSDP or tensor parallelism does.
    "mesh": _FSDP._replace(form="mesh:AXIS=N[,AXIS=N]", strategy="mesh:Mesh"),
}
PARALLEL_FORMS = ", ".join(mode.form for mode in PARALLEL_MODES.values())


class MeshAxis(NamedTuple):
    """One axis of a DeviceMesh: its name, and how many ranks lie along it."""

    name: str
    size: int

    @property
    def divides_batch(self) -> bool:
        """Whether ranks along it have samples of their own; otherwise they share a batch."""
        return self.name.partition("_")[0] in _BATCH_AXES


class ParallelPlan(NamedTuple):
    """A parsed `Recipe.parallel`."""

    mode: str  # a key of `PARALLEL_MODES`
    size: int  # the N of the mode: ranks, devices for "dp", 1 for "single"
    num_shards: int = 1  # for "hsdp" the S of RxS: ranks that share one copy of the parameters
    schedule: str | None = None
    axes: tuple[MeshAxis, ...] = ()  # of a mesh, the last one's ranks next to each other

    @property
    def properties(self) -> ParallelMode:
        """The mode's row in the table; that of a mesh depends on its axes."""
        mode = PARALLEL_MODES[self.mode]
        if not self.model_axes:
            return mode
        name = self.model_axes[0].name
        reason = f"the ranks of axis {name!r} share a batch, and no gradient is their sum"
        return mode._replace(why_no_reduction=reason)

    @property
    def model_axes(self) -> tuple[MeshAxis, ...]:
        """The axes of a mesh along which several ranks share a batch."""
        return tuple(axis for axis in self.axes if axis.size > 1 and not axis.divides_batch)

    @property
    def world_size(self) -> int:
        """Processes that the cell starts."""
        return 1 if self.properties.is_one_process else self.size

    @property
    def data_parallel_size(self) -> int:
        """Shards of the training data."""
        if self.axes:
            return math.prod(axis.size for axis in self.axes if axis.divides_batch)
        return 1 if self.properties.shares_batch else self.world_size

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank of a mesh is, by axis."""
        found = {}
        for axis in reversed(self.axes):
            rank, found[axis.name] = divmod(rank, axis.size)
        return {axis.name: found[axis.name] for axis in self.axes}

    def shard_of(self, rank: int) -> int:
        """The shard of the training data that a rank loads, from 0."""
        if not self.axes:
            return rank if self.data_parallel_size > 1 else 0
        index, at = 0, self.coordinates(rank)
        for axis in self.axes:
            if axis.divides_batch:
                index = index * axis.size + at[axis.name]
        return index

    @property
    def num_chunks(self) -> int:
        """Parts of each micro-batch along its first dimension."""
        per_rank = self.properties.chunks_per_rank
        return 1 if per_rank is None else per_rank * self.size

    @property
    def needs_group(self) -> bool:
        """Whether the cell trains with torch.distributed, if only over one rank."""
        return not self.properties.is_one_process


def parse_parallel(text: str) -> ParallelPlan:
    """Return the plan that a parallel mode's text names.

    Raises a RecipeError for a text of no allowed form, or a size that the mode cannot have.
    """
    if text == "single":
        return ParallelPlan(mode="single", size=1)
    if (sized := PARALLEL_MODES.get(text)) is not None:
        raise RecipeError(f"parallel {text!r} does not say how many ranks; use {sized.form}")
    if text.startswith("mesh:"):
        axes = _parse_axes(text)
        return ParallelPlan(mode="mesh", size=math.prod(axis.size for axis in axes), axes=axes)
    match = re.fullmatch(rf"([a-z0-9-]+):({NUMBER})(?:x({NUMBER}))?(?::([a-z0-9]+))?", text)
    name, size, shards, schedule = match.groups() if match else ("", None, None, None)
    mode = PARALLEL_MODES.get(name)
    takes_size = mode is not None and mode.form.startswith(f"{name}:{'RxS' if shards else 'N'}")
    if mode is None or not takes_size or (schedule and not mode.default_schedule):
        raise RecipeError(f"parallel {text!r} is not a known mode; use one of {PARALLEL_FORMS}")
    sizes = [int(number) for number in (size, shards) if number]
    if min(sizes) < mode.smallest_size:
        example = "x".join([str(max(mode.smallest_size, 2))] * len(sizes))
        needs = f"{name} needs at least {mode.smallest_size}; use {name}:{example}"
        raise RecipeError(f"parallel {text!r} has a size of {min(sizes)}, and {needs}")
    schedule = schedule or mode.default_schedule
    if schedule is not None and schedule not in PIPELINE_SCHEDULES:
        advice = f"use one of {', '.join(PIPELINE_SCHEDULES)}"
        raise RecipeError(f"parallel {text!r} names the pipeline schedule {schedule!r}; {advice}")
    total, num_shards = math.prod(sizes), int(shards or 1)
    return ParallelPlan(mode=name, size=total, num_shards=num_shards, schedule=schedule)


def _parse_axes(text: str) -> tuple[MeshAxis, ...]:
    axes: list[MeshAxis] = []
    for part in text.removeprefix("mesh:").split(","):
        if (match := re.fullmatch(rf"([a-z][a-z0-9_]{{0,31}})=(?!0)({NUMBER})", part)) is None:
            raise RecipeError(
                f"parallel {text!r} has {part!r} where an axis is to be; use mesh:AXIS=N[,AXIS=N] "
                "with the names and sizes of a DeviceMesh's axes, such as mesh:fsdp=2,tp=2"
            )
        axis = MeshAxis(match[1], int(match[2]))
        if axis.name in (other.name for other in axes):
            advice = "give each a name of its own, such as dp_replicate and dp_shard"
            raise RecipeError(f"parallel {text!r} names axis {axis.name!r} twice; {advice}")
        if not axis.divides_batch and axis.name.partition("_")[0] not in _MODEL_AXES:
            unsaid = f"does not say whether the ranks of axis {axis.name!r} share a batch"
            divides = f"begin its name with {', '.join(_BATCH_AXES)} where it divides the batch"
            shares = f"or with {', '.join(_MODEL_AXES)} where its ranks share one"
            advice = f"{divides}, {shares}, such as dp_{axis.name}"
            raise RecipeError(f"parallel {text!r} {unsaid}; {advice}")
        axes.append(axis)
    return tuple(axes)
