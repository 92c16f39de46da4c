"""What a check is given: a recorded run, and how it was trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.equivalence.trace.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to be checked.

    Attributes:
        device: Where references are computed; of the same kind as the device of the ranks.
        num_steps: Optimizer steps that the run was asked to record.
        trace: What the ranks recorded.
        twin: The same run without checkpointing; None where the recipe has none.
        on_step: Called before the references of each step, to show progress.
    """

    workload: Workload
    recipe: Recipe
    device: torch.device
    seed: int
    num_steps: int
    trace: Trace
    twin: Trace | None
    on_step: Callable[[], None]
