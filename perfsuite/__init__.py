"""A pytest-based performance regression suite for PyTorch training.

The names a user needs, imported on first use. None of them imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfsuite.errors import (
        EquivalenceError,
        PerfsuiteError,
        RankFailureError,
        RecipeError,
        WorkloadError,
    )
    from perfsuite.records.cell import Outcome
    from perfsuite.records.equivalence import EquivalenceReport
    from perfsuite.records.recipe import Recipe
    from perfsuite.records.stages import Step, StopLoop, log_loss, stage, step_done
    from perfsuite.records.workload import Workload, workload


__all__ = [
    "EquivalenceError",
    "EquivalenceReport",
    "Outcome",
    "PerfsuiteError",
    "RankFailureError",
    "Recipe",
    "RecipeError",
    "Step",
    "StopLoop",
    "Workload",
    "WorkloadError",
    "log_loss",
    "stage",
    "step_done",
    "workload",
]

_HOME = {
    **dict.fromkeys(("EquivalenceError", "PerfsuiteError", "RankFailureError"), "errors"),
    **dict.fromkeys(("RecipeError", "WorkloadError"), "errors"),
    **dict.fromkeys(("Step", "StopLoop", "log_loss", "stage", "step_done"), "records.stages"),
    **dict.fromkeys(("Workload", "workload"), "records.workload"),
    "EquivalenceReport": "records.equivalence",
    "Outcome": "records.cell",
    "Recipe": "records.recipe",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfsuite' has no attribute {name!r}")
    return getattr(importlib.import_module(f"perfsuite.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
