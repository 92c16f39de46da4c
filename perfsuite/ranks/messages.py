"""The messages between the controller and a rank: one frozen dataclass each, plain values only.

The controller unpickles these, so nothing here may need torch. What only a rank may open travels
as bytes, see `packing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfsuite.errors import RecipeError
from perfsuite.records.cell import Counts, Operator
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.records.profile import Communication, RankUsage
from perfsuite.records.recipe import Recipe, is_int_from, optional
from perfsuite.records.recipe_text import parse_recipe
from perfsuite.system.environment import Environment

ActivityName = Literal["train", "load", "evaluate", "all_reduce"]


@dataclass(frozen=True, kw_only=True)
class CallFunction:
    """Job: call a function with the default process group initialised.

    Attributes:
        call: (function, args), packed.
    """

    call: bytes


@dataclass(frozen=True, kw_only=True)
class RunCell:
    """Job: build a cell, warm it up, measure it, count it.

    Attributes:
        workload: What `find_workload` returned, packed; None where the activity has none.
        message_bytes: Size of the tensor that "all_reduce" reduces; None for other activities.
    """

    workload: bytes | None
    recipe: Recipe
    activity: ActivityName
    plan: MeasurePlan
    message_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RecordRun:
    """Job: train some steps, and leave what each rank saw of them in a file.

    Attributes:
        workload: What `records.workload.find_workload` returned, packed.
        folder: Of the verification; rank R writes `trace_path(folder, name, R)`.
        name: Of the run: "tested", or "twin" for the same without checkpointing.
        num_steps: Optimizer steps to record.
        counts_work: Whether to count what one further step runs.
    """

    workload: bytes
    recipe: Recipe
    seed: int
    folder: str
    name: str
    num_steps: int
    counts_work: bool


@dataclass(frozen=True, kw_only=True)
class CheckRun:
    """Job: compare what was recorded with references, in one process without torch.distributed.

    Attributes:
        workload: As of `RecordRun`.
        has_twin: Whether a run without checkpointing was recorded too.
    """

    workload: bytes
    recipe: Recipe
    seed: int
    num_steps: int
    folder: str
    has_twin: bool


@dataclass(frozen=True, kw_only=True)
class RunProfile:
    """Job: train some epochs with an evaluation after each, and say where the time went.

    Attributes:
        workload: What `records.workload.find_workload` returned, packed.
    """

    workload: bytes
    recipe: Recipe
    seed: int
    num_epochs: int


Job = CallFunction | RunCell | RecordRun | CheckRun | RunProfile


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a group meet that several controllers start.

    Attributes:
        host: Of the TCP store that torchrun or rank 0 keeps.
        port: Of it.
        prefix: What the group's keys in the store begin with; of this group alone.
        is_on_one_machine: Whether all ranks share one loopback interface.
    """

    host: str
    port: int
    prefix: str
    is_on_one_machine: bool


@dataclass(frozen=True, kw_only=True)
class RankStart:
    """What a rank's process is started with.

    Attributes:
        entry: The function that the rank runs, "package.module:function".
        folder: The group's own temporary folder: rendezvous file, progress board, logs.
        device: "cpu" or "cuda".
        gpu: See `group.Assignment`.
        backend: Of torch.distributed: "gloo" or "nccl"; None for a single process without a group.
        rendezvous: Where the group meets; None where it shares a folder.
        collective_timeout_s: How long a collective may wait for its peers.
        num_threads: Intra-operator threads of the rank.
        core: Processor that the rank is pinned to, None if there are not enough.
        cores: Processors that the whole group, its loader workers included, may use.
        import_roots: Folders that come first on the rank's module path.
        turns: Where rounds ask for their turn; None where nobody alternates with them.
    """

    entry: str
    rank: int
    world_size: int
    folder: str
    device: str
    gpu: int
    backend: str | None
    rendezvous: Rendezvous | None
    collective_timeout_s: float
    num_threads: int
    core: int | None
    cores: tuple[int, ...]
    import_roots: tuple[str, ...]
    seed: int
    turns: TurnChannel | None
    job: Job


@dataclass(frozen=True, kw_only=True)
class CellMeasured:
    """What one rank measured of a cell.

    Attributes:
        losses: Of the first optimizer steps; None on a rank that holds no loss.
        global_batch_size: Samples of one iteration over all ranks; None if it has no samples.
        peak: Memory of one iteration on this rank; None where nothing was counted.
        operators: The costliest of one iteration on this rank; None where nothing was counted.
        missing: Why a number is None, by its name in the record.
    """

    rounds: tuple[RoundTimes, ...]
    num_iterations: int
    losses: tuple[float, ...] | None
    global_batch_size: int | None
    counts: Counts
    peak: PeakMemory | None
    operators: tuple[Operator, ...] | None
    environment: Environment
    missing: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class FunctionReturned:
    """What a called function returned.

    Attributes:
        value: It, packed.
    """

    value: bytes


@dataclass(frozen=True, kw_only=True)
class RunRecorded:
    """The rank has left what it saw in its file."""


@dataclass(frozen=True, kw_only=True)
class RunChecked:
    """What the checks found.

    Attributes:
        rows: One for each check that applies.
        inapplicable: By name, why each of the other checks does not apply.
    """

    rows: tuple[EquivalenceRow, ...]
    inapplicable: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class EpochProfiled:
    """One epoch of one rank.

    Attributes:
        duration_s: From the end of the epoch before to the end of this one's evaluation.
        stages_s: Seconds in each stage that was entered; "evaluation" holds its loading.
        losses: Of each step, of this rank's data; empty on a rank that holds no loss.
        first_bad_loss: The first step, from 1, whose loss was not finite; None if all were.
        first_bad_gradient: The same of gradients.
        num_right: Right answers by class, on this rank's share; None where nothing was counted.
        num_there: Samples by class.
        metric_sums: Of the workload's own metric, by name: its means times the samples they are of.
        num_scored: Those samples, on this rank's share.
    """

    duration_s: float
    stages_s: dict[str, float]
    losses: tuple[float, ...]
    first_bad_loss: int | None
    first_bad_gradient: int | None
    num_right: tuple[int, ...] | None
    num_there: tuple[int, ...] | None
    metric_sums: dict[str, float]
    num_scored: int


@dataclass(frozen=True, kw_only=True)
class ProfilerOutput:
    """What `torch.profiler` saw on rank 0; see `records.profile.ProfiledRun`."""

    operators: tuple[Operator, ...]
    num_steps: int
    communication: Communication | None
    trace: bytes
    operator_table: str
    memory_summary: str


@dataclass(frozen=True, kw_only=True)
class ProfileTaken:
    """What one rank saw of its training.

    Attributes:
        wall_s: The sum of its epochs' durations.
        evaluated_split: None where nothing was evaluated.
        output: None on every rank but the first.
        missing: Why a field of the profile is None, by its name.
    """

    wall_s: float
    epochs: tuple[EpochProfiled, ...]
    evaluated_split: Literal["validation", "test"] | None
    usage: RankUsage
    output: ProfilerOutput | None
    missing: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """The rank found that it cannot exercise the cell."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The rank's job ended in an exception.

    Attributes:
        error: Name of the exception's class.
        is_ours: Whether it is one of `perfsuite.errors`, whose message stands for itself.
        lost_peer: Whether it only says that another rank is gone or late.
        at_s: When, on the machine's monotonic clock.
        lines: The traceback without frames of ours.
    """

    error: str
    is_ours: bool
    message: str
    lost_peer: bool
    at_s: float
    lines: tuple[str, ...]


Reply = CellMeasured | FunctionReturned | RunRecorded | RunChecked | ProfileTaken | Skipped | Failed


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """One rank's own times of one round.

    Attributes:
        duration_s: From the common start to the last device synchronisation.
        stages_s: Seconds of the whole round in each stage that was entered.
    """

    duration_s: float
    stages_s: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class IterationCounts:
    """Counts of one iteration on one rank; `records.cell.Counts` says what each means."""

    ops: int
    flops: int
    collectives: int
    collective_bytes: int


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Memory of one iteration on one rank.

    Attributes:
        metric: How the peak was read, see `perfsuite.worker.measure.memory`.
        peak_bytes: Most bytes that were alive at once.
        saved_activation_bytes: Bytes that a forward pass left alive for its backward pass; None
            where no forward pass was followed by a backward pass on this rank.
    """

    metric: Literal["live_storage_peak", "max_memory_allocated"]
    peak_bytes: int
    saved_activation_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class MeasurePlan:
    """How often and under which seed a cell is run.

    Attributes:
        num_rounds: Timed rounds, each of which yields one sample; None lets the gate choose that
            gives the turns.
        num_iterations: Optimizer steps of one round; None lets rank 0 choose after the warm-up.
        seed: Seed of weights, data order and random numbers on every rank.
        round_s: What rank 0 then aims at; None is 50 ms.
    """

    num_rounds: int | None
    num_iterations: int | None
    seed: int
    round_s: float | None = None

    def __post_init__(self) -> None:
        if not optional(is_int_from(1))(self.num_rounds):
            raise RecipeError(f"rounds is {self.num_rounds!r}; use a whole number from 1")
        if not optional(is_int_from(1))(self.num_iterations):
            raise RecipeError(
                f"iterations is {self.num_iterations!r}; use None or a whole number from 1"
            )


# What a calibration can plant beside slowdowns: memory that an iteration keeps, and a wait for all
# ranks, or for the device.
FAULTS = ("leak", "synchronization")


@dataclass(frozen=True, kw_only=True)
class TurnChannel:
    """Where turns are asked for.

    Attributes:
        path: Of a Unix socket.
        arm: The name of the arm that this process belongs to.
        planted_ratio: Slowdown of each iteration that a calibration plants, 0.05 = 5 %.
        planted_recipe: Fields of each recipe that it changes: ("precision=fp32",).
        planted_fault: One of FAULTS that it plants in each iteration, else None.
    """

    path: str
    arm: str
    planted_ratio: float = 0.0
    planted_recipe: tuple[str, ...] = ()
    planted_fault: str | None = None

    def plant(self, recipe: Recipe) -> Recipe:
        """Return the recipe with what a calibration changes.

        Raises:
            SettingError: There is no such field, or it takes no such value.
            RecipeError: The value is not allowed beside the recipe's others.
        """
        return parse_recipe("the calibration", self.planted_recipe, of=recipe)
