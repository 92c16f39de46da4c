"""The record of a profile: the JSON of the verb `profile`, and all that its reports see.

`None` means "not available here", with the reason in `Profile.missing`; never 0, -1 or NaN.
"""

from typing import Any, Literal

import msgspec

from perfsuite.records.cell import Operator
from perfsuite.system.usage import UsageSample


class ProfileStages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds of a whole training, disjoint; together they are its wall time.

    `load` is of the training split alone: evaluations include theirs, None where none was possible.
    `other` is the optimizer, copies to the device, reading the losses of an epoch.
    """

    load: float
    forward: float
    loss_backward: float
    evaluation: float | None
    other: float

    def as_rows(self) -> list[tuple[str, float]]:
        """Return the stages that are not None by their names in reports, in a step's order."""
        stages = msgspec.structs.asdict(self).items()
        return [(name.replace("_", " + "), time_s) for name, time_s in stages if time_s is not None]


class Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One epoch of the training, its evaluation included; `metrics` are those after it.

    `loss` is the mean over steps and data-parallel ranks; None where one is not finite.
    """

    loss: float | None
    duration_s: float
    accuracy: float | None
    stages_s: ProfileStages
    metrics: dict[str, float | None] = {}


class NonFinite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first step, counted from 1 in its epoch, with a NaN or an infinity on any rank."""

    what: Literal["loss", "gradient"]
    epoch: int
    step: int


class Communication(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds with a collective of rank 0 under way; exposed ones without any computation."""

    total_s: float
    exposed_s: float
    overlapped_s: float


class RankUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The use of one rank's device, such as "cpu" or "cuda:0", over the training."""

    rank: int
    device: str
    samples: tuple[UsageSample, ...]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the time of a real training went, and how good its model became.

    Attributes:
        wall_s: From the start of the first epoch to the end of the last evaluation, on the rank
            that took longest, without the check for infinite gradients. Stages and durations are
            that same rank's, so that they add up.
        evaluated_split: "validation", or "test" where there is no validation split.
        accuracy: After the last epoch, on the whole evaluated split.
        accuracy_per_class: By the class's number, for each class that the split has.
        metrics: Mean of the workload's own metric over the evaluated split, by name; None where it
            is not finite. Empty where the metric is accuracy or none.
        losses: Mean over data-parallel ranks of each step's loss; None where it is not finite.
        non_finite: At most one loss and one gradient.
        operators: Rank 0's, costliest first, in `num_profiled_steps` steps after the last epoch.
        communication: In the same steps.
        missing: Why a field is None, by its name.
    """

    schema: Literal[1] = 1
    workload: str
    recipe: dict[str, Any]
    device: str
    world_size: int
    wall_s: float
    stages_s: ProfileStages
    evaluated_split: Literal["validation", "test"] | None
    accuracy: float | None
    accuracy_per_class: dict[str, float] | None
    epochs: tuple[Epoch, ...]
    losses: tuple[float | None, ...]
    non_finite: tuple[NonFinite, ...]
    operators: tuple[Operator, ...]
    num_profiled_steps: int
    communication: Communication | None
    usage: tuple[RankUsage, ...]
    missing: dict[str, str]
    metrics: dict[str, float | None] = {}


class ProfilerOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What `torch.profiler` saw of some steps on rank 0; `trace` is a Chrome trace, in JSON.

    `memory_summary` is the allocator's on CUDA, and the operators' allocations on a CPU.
    """

    operators: tuple[Operator, ...]
    num_steps: int
    communication: Communication | None
    trace: bytes
    operator_table: str
    memory_summary: str


class ProfiledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A profile, and the profiler's output behind it."""

    profile: Profile
    profiler: ProfilerOutput
