"""A pytest-based performance regression suite for PyTorch training.

The names a user needs, imported on first use. None of them imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfsuite.cells import Recipe
    from perfsuite.errors import (
        EquivalenceError,
        PerfsuiteError,
        RankFailureError,
        RecipeError,
        WorkloadError,
    )
    from perfsuite.records import EquivalenceReport, Outcome
    from perfsuite.registry import Workload, workload

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
    "EquivalenceReport": "records",
    "Outcome": "records",
    "PerfsuiteError": "errors",
    "RankFailureError": "errors",
    "Recipe": "cells",
    "RecipeError": "errors",
    "Workload": "registry",
    "WorkloadError": "errors",
    "workload": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfsuite' has no attribute {name!r}")
    return getattr(importlib.import_module(f"perfsuite.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
