"""A pytest-based performance regression suite for PyTorch training.

The names a user needs, imported on first use. None of them imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfsuite.errors import EquivalenceError as EquivalenceError
    from perfsuite.errors import PerfsuiteError as PerfsuiteError
    from perfsuite.errors import RankFailureError as RankFailureError
    from perfsuite.errors import RecipeError as RecipeError
    from perfsuite.errors import WorkloadError as WorkloadError
    from perfsuite.records.cell import Outcome as Outcome
    from perfsuite.records.equivalence import EquivalenceReport as EquivalenceReport
    from perfsuite.records.recipe import Recipe as Recipe
    from perfsuite.records.stages import Step as Step
    from perfsuite.records.stages import StopLoop as StopLoop
    from perfsuite.records.stages import log_loss as log_loss
    from perfsuite.records.stages import stage as stage
    from perfsuite.records.stages import step_done as step_done
    from perfsuite.records.workload import Workload as Workload
    from perfsuite.records.workload import workload as workload

_HOME = {
    **dict.fromkeys(("EquivalenceError", "PerfsuiteError", "RankFailureError"), "errors"),
    **dict.fromkeys(("RecipeError", "WorkloadError"), "errors"),
    **dict.fromkeys(("Step", "StopLoop", "log_loss", "stage", "step_done"), "records.stages"),
    **dict.fromkeys(("Workload", "workload"), "records.workload"),
    "EquivalenceReport": "records.equivalence",
    "Outcome": "records.cell",
    "Recipe": "records.recipe",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'perfsuite' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"perfsuite.{_HOME[name]}"), name)
    return globals().setdefault(name, found)  # each step asks for `stage`


def __dir__() -> list[str]:
    return __all__
