"""The benchmark file that `compare` hands to both arms, whose environments say what to measure."""

import json
import os
from collections.abc import Callable

from perfsuite.records.cell import Outcome
from perfsuite.records.recipe import Recipe

# JSON: {"workload": a name or "module:attribute", "recipe": {fields}}.
CELL_VARIABLE = "PERFSUITE_COMPARED_CELL"


def test_training(train_benchmark: Callable[..., Outcome]) -> None:
    """Train the arm's cell."""
    cell = json.loads(os.environ[CELL_VARIABLE])
    train_benchmark(cell["workload"], Recipe(**cell["recipe"]))
