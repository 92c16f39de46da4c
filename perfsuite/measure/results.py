"""What one rank measured, as plain values that travel to the controller.

Must not import torch, nor know how any of it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    """Counts of one iteration on one rank; `records.Counts` says what each means."""

    ops: int
    flops: int
    collectives: int
    collective_bytes: int


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Memory of one iteration on one rank.

    Attributes:
        metric: How the peak was read, see `perfsuite.measure.memory`.
        peak_bytes: Most bytes that were alive at once.
        saved_activation_bytes: Bytes that a forward pass left alive for its backward pass; None
            where no forward pass was followed by a backward pass on this rank.
    """

    metric: Literal["live_storage_peak", "max_memory_allocated"]
    peak_bytes: int
    saved_activation_bytes: int | None
