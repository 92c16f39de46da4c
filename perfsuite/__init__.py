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
    from perfsuite.records.workload import Workload, workload


__all__ = [
    "EquivalenceError",
    "EquivalenceReport",
    "Outcome",
    "PerfsuiteError",
    "RankFailureError",
    "Recipe",
    "RecipeError",
    "Workload",
    "WorkloadError",
    "workload",
]

_HOME = {
    "EquivalenceError": "errors",
    "EquivalenceReport": "records.equivalence",
    "Outcome": "records.cell",
    "PerfsuiteError": "errors",
    "RankFailureError": "errors",
    "Recipe": "records.recipe",
    "RecipeError": "errors",
    "Workload": "records.workload",
    "WorkloadError": "errors",
    "workload": "records.workload",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfsuite' has no attribute {name!r}")
    return getattr(importlib.import_module(f"perfsuite.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
