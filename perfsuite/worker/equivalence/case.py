"""What a check is handed: a recorded run, and how it was trained. Must not know any check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.equivalence.trace.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to be judged.

    Attributes:
        workload: What was trained.
        recipe: How.
        device: Where references are computed, of the same kind as the ranks' own.
        seed: Of the run.
        num_steps: Optimizer steps that were to be recorded.
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
