"""What a controller and its ranks send each other: how a rank is started, its job, its reply.

Frozen, of plain values. The controller has no torch, so what needs it travels as bytes
(`ranks.pickling.pack`), such as the `workload` of a job: what `find_workload` returned.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from perfsuite.errors import PeerState, RecipeError, SettingError
from perfsuite.ranks.assignments import Assignment
from perfsuite.records.cell import Counts, MemoryMetric, Operator, TensorDigest
from perfsuite.records.equivalence import EquivalenceRow
from perfsuite.records.profile import ProfilerOutput, RankUsage
from perfsuite.records.recipe import Recipe, is_int_from, optional
from perfsuite.system.environment import Environment

ActivityName = Literal["train", "load", "evaluate", "all_reduce", "step", "loop", "command"]
# Faults that a calibration can inject into each iteration, beside slowdowns: memory that the
# iteration keeps, and a wait for all ranks or for the device.
INJECTABLE_FAULTS = ("leak", "synchronization")
# Those that one process can be held to whatever computes them; `Recipe` has more.
OWN_PRECISIONS = ("fp64", "fp32", "bf16", "amp-bf16", "amp-fp16")


class TurnChannel(NamedTuple):
    """How the ranks of one arm ask a gate's socket for turns, and what calibration injects."""

    path: str
    arm: str
    planted_ratio: float = 0.0  # slowdown of each round, 0.05 = 5 %
    planted_recipe: tuple[str, ...] = ()  # changed fields of each recipe: ("precision=fp32",)
    planted_fault: str | None = None  # one of INJECTABLE_FAULTS, in each iteration


class GroupPolicy(NamedTuple):
    """How the ranks of a group are started, and how long their controller waits for them."""

    device: str = "cpu"
    num_gpus: int = 0  # that the ranks see; with fewer than ranks they share them through gloo
    timeout_s: float = 120.0  # a group without progress for so long is stuck
    collective_timeout_s: float = 30.0  # a collective that waits for so long has lost its peer
    seed: int = 0
    import_roots: tuple[str, ...] = ()  # come first on the ranks' module path
    shows_output: bool = True  # of the ranks, when all went well
    entry: str = "perfsuite.worker.main:serve"  # by name, as that module imports torch
    proof: str = ""  # folder of what the ranks of a proof record, on the first rank's machine
    turns: TurnChannel | None = None  # none where no other arm runs beside them


class GroupRequest(NamedTuple):
    """A job for fresh ranks; `needs_group` says whether they initialise torch.distributed."""

    job: "Job"
    world_size: int
    policy: GroupPolicy
    needs_group: bool = True


class RankStart(NamedTuple):
    """What a rank's process is started with."""

    request: GroupRequest
    assignment: Assignment
    folder: str  # of its group, for board and logs
    core: int | None  # its only one, unless that is None
    cores: tuple[int, ...]  # for its loader workers, and for a rank without a `core`
    processes: frozenset[int] = frozenset()  # of all ranks of a command: one may start another

    @property
    def rank(self) -> int:
        """The rank's number in its group."""
        return self.assignment.rank

    @property
    def seed(self) -> int:
        """Of weights, data order and random numbers."""
        return self.request.policy.seed


class Joined(NamedTuple):
    """What a process of a command says of itself first, to be answered with a `RankStart`."""

    process: int
    rank: int
    world_size: int
    device: str


class CallFunction(NamedTuple):
    """Job: call a function with the default process group initialised; (function, args), packed."""

    call: bytes


@dataclass(frozen=True, kw_only=True)
class MeasurePlan:
    """How often a cell is run."""

    num_rounds: int | None = None  # None lets the gate choose
    num_iterations: int | None = None  # of a round; None lets rank 0 choose
    round_s: float | None = None  # what rank 0 aims at then; None is 50 ms

    def __post_init__(self) -> None:
        for name, value in {"rounds": self.num_rounds, "iterations": self.num_iterations}.items():
            if not optional(is_int_from(1))(value):
                raise RecipeError(f"{name} is {value!r}; use None or a whole number from 1")


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A function or a command of a user's that trains, measured as it is."""

    name: str
    function: bytes  # packed: `build_step`, or `train`, which is a whole loop; empty for a command
    kind: Literal["step", "loop", "command"]
    world_size: int = 1  # of the ranks that call it; a command itself says how many it starts
    samples_per_step: int | None = None  # of all ranks together; None where the user does not say
    tokens_per_step: int | None = None
    num_steps: int | None = None  # of a loop or a command that are timed, after `num_warmup`
    num_warmup: int = 3
    optimizer: str | None = None  # class whose steps count; None is the first one that steps
    precision: str = "fp32"

    def __post_init__(self) -> None:
        amount = optional(is_int_from(1)), "None or a whole number from 1"
        is_text = optional(lambda value: isinstance(value, str))
        is_known = OWN_PRECISIONS.__contains__
        # Two rounds of a step; the time from one step's end to the next one's chooses rounds.
        at_least_2 = optional(is_int_from(2)) if self.kind == "step" else is_int_from(2)
        for name, value, is_allowed, allowed in (
            ("ranks", self.world_size, is_int_from(1), "a whole number from 1"),
            ("samples_per_step", self.samples_per_step, *amount),
            ("tokens_per_step", self.tokens_per_step, *amount),
            ("optimizer", self.optimizer, is_text, "the name of its class, such as 'AdamW'"),
            ("precision", self.precision, is_known, f"one of {', '.join(OWN_PRECISIONS)}"),
            ("steps", self.num_steps, at_least_2, "a whole number from 2"),
            ("warmup", self.num_warmup, is_int_from(2), "a whole number from 2"),
        ):
            if not is_allowed(value):
                raise SettingError(f"{name} is {value!r}; use {allowed}")


class RunCell(NamedTuple):
    """Job: measure a workload and a recipe, or a user's own code, or an "all_reduce" of bytes."""

    activity: ActivityName
    plan: MeasurePlan
    workload: bytes | None = None
    recipe: Recipe | None = None
    message_bytes: int | None = None
    user_code: UserCode | None = None


class RecordRun(NamedTuple):
    """Job: train some steps, and write what each rank saw of them to a file of the proof."""

    workload: bytes
    recipe: Recipe
    name: str  # "tested", or "twin" for the same run without checkpointing
    num_steps: int


class CheckRun(NamedTuple):
    """Job: compare a recorded run, and its twin if it has one, with references on one rank."""

    workload: bytes
    recipe: Recipe
    num_steps: int


class RecordSteps(NamedTuple):
    """Job: take the first steps of a user's own, and write what each rank saw to a file."""

    user_code: UserCode
    num_steps: int


class CheckSteps(NamedTuple):
    """Job: compare the steps of `tested` with those of `reference`, which one rank takes here."""

    reference: UserCode
    tested: UserCode


class RunProfile(NamedTuple):
    """Job: train some epochs with an evaluation after each, and say where the time went."""

    workload: bytes
    recipe: Recipe
    num_epochs: int


Job = CallFunction | RunCell | RecordRun | CheckRun | RecordSteps | CheckSteps | RunProfile


class FunctionReturned(NamedTuple):
    """Reply to `CallFunction`: what the function returned, packed."""

    value: bytes


# A stage, and when it began and ended, in seconds since its round did.
Span = tuple[str, float, float]
# Of a watched iteration, by stage: seconds outside and inside of collectives, and its operators.
Watched = dict[str, tuple[float, float, int]]


class RoundTimes(NamedTuple):
    """One rank's own times of one round: on a CPU from the common start to the end of its work.

    On an accelerator from the device's first iteration to its last, when the host has run ahead.
    """

    duration_s: float
    stages_s: dict[str, float]  # of the whole round
    steps_s: tuple[float, ...] = ()  # from border to border
    # The stages in order, on a CPU with "other" between; empty where no rank is compared.
    spans: tuple[Span, ...] = ()


class PeakMemory(NamedTuple):
    """Memory of one iteration on one rank, see `perfsuite.worker.measure.memory`."""

    metric: MemoryMetric
    peak_bytes: int
    saved_activation_bytes: int | None  # None where no backward pass followed a forward pass here
    reserved_bytes: int | None = None  # the most that an allocator held; None on a CPU


NO_COUNTS = Counts(**dict.fromkeys(Counts.__struct_fields__))
# What is found in iterations after the timed ones, by its name in the record.
COUNTED = (*Counts.__struct_fields__, "memory", "operators")


@dataclass(kw_only=True)
class CellMeasured:
    """Reply to `RunCell`: what one rank has measured so far."""

    rounds: list[RoundTimes] = field(default_factory=list)
    num_iterations: int = 0
    losses: dict[int, float] | None = None  # by step, from 1; None on a rank that holds none
    global_batch_size: int | None  # over all ranks; None where an iteration has no samples
    counts: Counts = NO_COUNTS
    peak: PeakMemory | None = None  # of one iteration, as the next; None where nothing was counted
    compile_s: float | None = None
    energy_j: tuple[str, float] | None = None  # of its GPU, by UUID, and an iteration
    operators: tuple[Operator, ...] | None = None  # and Python's functions, where a gate explains
    # Of this rank, after each of the first steps and the last; empty where no gate asks.
    weights: dict[int, tuple[TensorDigest, ...]] = field(default_factory=dict)
    buffers: dict[int, tuple[TensorDigest, ...]] = field(default_factory=dict)  # likewise
    environment: Environment
    missing: dict[str, str]  # why a number is None, by its name in the record
    # Where `rounds` have no times of stages.
    stage_rounds: list[RoundTimes] = field(default_factory=list)
    # Of untimed iterations on a CPU.
    watched_s: list[Watched] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunRecorded:
    """Reply to `RecordRun` and `RecordSteps`: this rank's file is written."""


class RunChecked(NamedTuple):
    """Reply to `CheckRun` and `CheckSteps`: checks that apply, and by name why others do not."""

    rows: tuple[EquivalenceRow, ...]
    inapplicable: dict[str, str]


class RankEpoch(NamedTuple):
    """One rank's share of an epoch; those of all ranks make one `records.profile.Epoch`."""

    duration_s: float  # from the end of the epoch before to the end of this one's evaluation
    stages_s: dict[str, float]  # of those that were entered; "evaluation" holds its loading
    losses: tuple[float, ...]  # of each step on this rank's data; empty on a rank that holds none
    first_bad_gradient: int | None  # the first step, from 1, whose gradient is not finite
    num_right: tuple[int, ...] | None  # by class; None where nothing was counted
    num_there: tuple[int, ...] | None
    metric_sums: dict[str, float]  # the workload's own metric by name, over `num_scored` samples
    num_scored: int


class ProfileTaken(NamedTuple):
    """Reply to `RunProfile`: what one rank saw; `missing` says by name why a field is None."""

    epochs: tuple[RankEpoch, ...]
    evaluated_split: Literal["validation", "test"] | None
    usage: RankUsage
    output: ProfilerOutput | None
    missing: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Reply to any job: it ended in an exception."""

    error: str  # its class, one of `perfsuite.errors` if it `is_ours`
    is_ours: bool = False
    message: str
    peer: PeerState | None  # what it only says of another rank
    at_s: float  # when it was raised, on the machine's monotonic clock
    lines: tuple[str, ...] = ()  # the traceback without frames of ours


Reply = CellMeasured | FunctionReturned | RunRecorded | RunChecked | ProfileTaken | Failed
