"""LeNet on MNIST by number of loader workers: the quoted table, and what its shape is.

The figures are other people's on another machine; what is held against a machine is their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from perfsuite.records.profile import Profile
from perfsuite.units import format_ratio, format_seconds

# The quoted accuracies are 99.07 to 99.10 % after ten epochs; of 5000 images half a point is 25.
_SAME_ACCURACY = 0.005
_LEARNED = 0.98


@dataclass(frozen=True, kw_only=True)
class Line:
    """One training.

    Attributes:
        load_s: Waiting for a batch.
        update_s: All else of a step.
        total_s: Of the whole training.
        accuracy: After it.
    """

    num_workers: int
    load_s: float
    update_s: float
    total_s: float
    accuracy: float


# The practice report with MNIST and LeNet: one GPU, ten epochs.
QUOTED = (
    Line(num_workers=0, load_s=0.0064, update_s=0.0011, total_s=72.80, accuracy=0.9908),
    Line(num_workers=2, load_s=0.0043, update_s=0.0012, total_s=34.96, accuracy=0.9910),
    Line(num_workers=4, load_s=0.0005, update_s=0.0012, total_s=18.47, accuracy=0.9907),
)


def line_of(profile: Profile) -> Line:
    """Return what a profile says of one number of workers."""
    stages, num_steps = profile.stages_s, len(profile.losses)
    assert profile.accuracy is not None, "MNIST has a validation split and classes"
    computing_s = stages.forward + stages.loss_backward + stages.other
    return Line(
        num_workers=profile.recipe["num_workers"],
        load_s=stages.load / num_steps,
        update_s=computing_s / num_steps,
        total_s=profile.wall_s,
        accuracy=profile.accuracy,
    )


def differences(lines: Sequence[Line]) -> list[str]:
    """Return in what a table is not like the quoted one; nothing where its shape is the same.

    Args:
        lines: By increasing number of workers, none more than there are processors.
    """
    alone = lines[0]
    found = []
    if alone.load_s <= alone.update_s:
        found.append(
            f"without workers a step waits {format_seconds(alone.load_s)} for its batch and "
            f"computes {format_seconds(alone.update_s)}: loading does not bind"
        )
    for fewer, more in pairwise(lines):
        step = f"from {fewer.num_workers} to {more.num_workers} workers"
        if more.load_s >= fewer.load_s:
            found.append(f"{step} the wait for a batch does not fall")
        if more.total_s >= fewer.total_s:
            found.append(f"{step} the whole training does not become faster")
    accuracies = [line.accuracy for line in lines]
    low, high = min(accuracies), max(accuracies)
    if low < _LEARNED or high - low > _SAME_ACCURACY:
        found.append(f"accuracies are from {format_ratio(low)} to {format_ratio(high)}")
    return found
