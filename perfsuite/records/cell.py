"""The record of a measured cell: strict and versioned, in the JSON and in cells.jsonl.

Gates and reports see records alone. `None` means "not available here"; never 0, -1 or NaN. The
bounds of a number hold for each number that is read: the file is untrusted.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from perfsuite.records.equivalence import Numerics
from perfsuite.records.verdict import Verdict
from perfsuite.system.untrusted import MOST, Amount, Count, Label

# Enough to see a loss fall; every cell runs at least as many steps with the default rounds.
NUM_FIRST_LOSSES = 10

MemoryMetric = Literal["live_storage_peak", "requested_peak", "max_memory_allocated"]
RecipeValue = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)] | float | str | bool | None


class StageTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds per iteration of each stage, each the maximum over ranks of the rank's mean.

    `load_exposed` is the part of "load" that an accelerator may have waited for; None on a CPU.
    """

    load: Amount | None
    forward: Amount | None
    backward: Amount | None
    optimizer: Amount | None
    evaluation: Amount | None
    other: Amount | None
    load_exposed: Amount | None = None


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Counts of one iteration, of the busiest rank, recomputation included.

    Attributes:
        flops: Floating-point operations of matrix products, convolutions and attention.
        model_flops: Those of `flops` that are no recomputation, neither by checkpointing nor inside
            of fused attention.
        ops: Operators that the dispatcher ran.
        collectives: Collective and point-to-point communications that the rank took part in.
        collective_bytes: Their sizes; a collective's is the larger of what the rank gives and
            gets (the convention of nccl-tests).
        saved_activation_bytes: Bytes that the forward pass left alive for the backward pass.
        kept_bytes: Those of tensors that each iteration leaves alive, as in a list that grows.
        kernel_launches: CUDA kernels launched; None on a CPU.
        collected_objects: Objects that refer to one another: only Python's collector frees them.
        allocator_retries: How often, in all timed rounds, an accelerator's allocator gave back what
            it kept for later because memory was short, and waited for that; None on a CPU.
        host_syncs: How often the host waited for a CUDA device; None on a CPU.
        device_copies: Copies between host and device; `device_copy_bytes` is their size.
        graph_breaks: Where torch.compile parted what it compiled, from the process's start to the
            end of the timed rounds; None where it compiled nothing.
        recompiles: How often it compiled a frame again until then, as for other shapes.
    """

    flops: Count | None
    ops: Count | None
    collectives: Count | None
    collective_bytes: Count | None
    saved_activation_bytes: Count | None
    kernel_launches: Count | None
    collected_objects: Count | None = None
    allocator_retries: Count | None = None
    model_flops: Count | None = None
    host_syncs: Count | None = None
    device_copies: Count | None = None
    device_copy_bytes: Count | None = None
    graph_breaks: Count | None = None
    recompiles: Count | None = None
    kept_bytes: Count | None = None


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cost of one operator, or function, in the iterations that were profiled, on rank 0.

    Attributes:
        name: The dispatcher's, such as "aten::addmm", or that of a longer part of the step that
            torch itself names, such as "Optimizer.step#SGD.step"; "data.py:crop" of a function.
        self_s: Seconds in it, in no operator that it called: on CUDA of kernels, else the host's.
    """

    name: str
    calls: Count
    self_s: Amount


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Peak memory of one iteration; `peak_bytes` is the largest of `per_rank`.

    Attributes:
        metric: "requested_peak" is what the program asked an accelerator's allocator for, the same
            in each run; "max_memory_allocated" the blocks given for it, where that is not counted.
        reserved_bytes: Most that the allocator of any rank held, fragments and caches included.
    """

    metric: MemoryMetric
    peak_bytes: Count
    per_rank: tuple[Count, ...]
    reserved_bytes: Count | None = None


class TensorDigest(msgspec.Struct, frozen=True, array_like=True):
    """What is told of a parameter's weights: all elements' sum and sum of squares, in float64.

    `moved_by_rounding` is the sum of what rounded gradients may have moved the elements by in the
    first steps, and `num_gradients` how many of these steps had a gradient that is not all 0.
    """

    num_elements: Count
    total: float
    squares: float
    moved_by_rounding: float = 0.0
    num_gradients: Count = 0


class StepPercentiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds that half of the steps, 95 % and 99 % took at most, each on its slowest rank."""

    p50: Amount
    p95: Amount
    p99: Amount


class CellRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`extra_info["perfsuite"]` of one benchmark: what was trained, how, and what was measured.

    Attributes:
        recipe: None where a user's own code was measured.
        num_devices: Accelerators that "dp:N" ran on: on a single one its replicas follow one
            another. None for any other mode.
        slow_ranks: By stage, the rank that took longest in it, less its waiting for other ranks.
        rank_stages_s: Seconds per iteration of each stage on each rank, likewise. Both are None
            for a single rank, and where the ranks ran different stages.
        tflops: 1e12 model FLOPs a second on one device, the mean over ranks.
        mfu: `tflops` over the dense peak of the device in the cell's precision, 0.5 = 50 %.
        hfu: The same with recomputation.
        operators: The ten costliest of one iteration on rank 0; None where none was profiled.
        weights: The digest of each parameter after some of the steps (`weights_steps`), summed
            over ranks; in a gate's launches alone, as `buffers`.
        buffers: A step, and the digest of each that training had moved after it; likewise.
        compile_s: Seconds that torch.compile took, on the slowest rank; None where it did nothing.
        energy_j: Joules of an iteration, of all devices; None where they do not count them, where
            one process uses several, and in a gate's launches, which share them.
        losses_by_step: (step, loss) of the first ten that were told, the 16th, 32nd ..., the last.
    """

    schema: Literal[1] = 1
    workload: str
    recipe: dict[str, RecipeValue] | None
    device: Label
    world_size: Count
    exercised: bool
    fingerprint: Label | None
    numerics: Numerics | None
    stages_s: StageTimes
    counts: Counts
    memory: Memory | None
    samples_per_s: Amount | None
    losses: tuple[float, ...]
    verdict: Verdict | None
    operators: tuple[Operator, ...] | None = None
    num_devices: Count | None = None
    tokens_per_s: Amount | None = None
    tflops: Amount | None = None
    mfu: Amount | None = None
    hfu: Amount | None = None
    slow_ranks: dict[str, Count] | None = None
    rank_stages_s: dict[str, tuple[Amount, ...]] | None = None
    step_s: StepPercentiles | None = None
    weights: tuple[tuple[TensorDigest, ...], ...] | None = None
    compile_s: Amount | None = None
    energy_j: Amount | None = None
    losses_by_step: tuple[tuple[Count, float], ...] | None = None
    weights_steps: tuple[Count, ...] | None = None
    buffers: tuple[tuple[Count, tuple[TensorDigest, ...]], ...] | None = None


class CellLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of cells.jsonl: a cell that ended, with pytest's node id and outcome.

    `reason` says why it failed, was not exercised, or lacks a number; `step_times_s` are seconds
    per iteration, one value a round; `perfsuite` is the record, None of a plain benchmark too.
    """

    fullname: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str | None
    step_times_s: tuple[Amount, ...]
    perfsuite: CellRecord | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a measuring fixture; `record` was stored beside the times.

    Attributes:
        step_times_s: Seconds per iteration of each round, the slowest rank's.
        num_iterations: Iterations of one round; None where measured before torchrun's restart.
        missing: Why a number in the record is None, by the number's name.
    """

    step_times_s: tuple[float, ...]
    num_iterations: int | None
    record: CellRecord
    missing: dict[str, str]

    @property
    def losses(self) -> tuple[float, ...]:
        """Losses of the first optimizer steps, the mean over data-parallel ranks."""
        return self.record.losses

    @property
    def losses_are_finite(self) -> bool:
        """Whether the cell trained at all and none of its losses is NaN or infinite."""
        return bool(self.losses) and all(math.isfinite(loss) for loss in self.losses)


def samples_of_step(samples_per_s: float | None, step_time_s: float) -> int | None:
    """Return how many samples a step has, from the rate in its record."""
    if samples_per_s is None or not math.isfinite(samples_per_s * step_time_s):
        return None
    return round(samples_per_s * step_time_s)


# Of one line of cells.jsonl, without its newline; other data raise a ValueError.
encode_line = msgspec.json.Encoder().encode
decode_line = msgspec.json.Decoder(CellLine).decode


def decode_lines(data: bytes) -> Iterator[CellLine]:
    """Yield the cells of a cells.jsonl; a killed session can leave half of its last line."""
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            yield decode_line(line)


# Everything beside the time that can grow; model FLOPs are a part of the FLOPs.
COUNT_NAMES = (*(name for name in Counts.__struct_fields__ if name != "model_flops"), "memory")
