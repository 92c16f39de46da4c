"""How cells are judged where no marker says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.gate.arms.arm import Suite
from perfsuite.gate.arms.command import Command
from perfsuite.gate.arms.launched import collected
from perfsuite.gate.baselines.accepted import Accepted
from perfsuite.gate.common_cells import choose_cells
from perfsuite.gate.judge.trial import Budget
from perfsuite.gate.request import GateRequest
from perfsuite.plugin import fixtures

BUDGET = Budget(max_pairs=4, max_s=1.0)


@pytest.mark.parametrize(
    ("fixture", "floor_s"), [(None, 0.0), ("train_benchmark", 50e-6), ("loader_benchmark", 50e-6)]
)
def test_cells_of_our_fixtures_have_a_floor(
    fixture: str | None, floor_s: float, tmp_path: Path
) -> None:
    request = GateRequest(command=Command(folder=tmp_path), budget=BUDGET, seed=1)
    suite = Suite(
        cells={"a": {"fixture": fixture}},
        root=tmp_path,
        inifile=None,
        pythonpath=(),
        python_files=(),
    )

    chosen = choose_cells(request, suite, suite, Accepted())

    assert chosen.policies["a"].floor_s == floor_s


def test_an_arm_knows_every_fixture_that_measures() -> None:
    assert set(collected._FIXTURES) == set(fixtures._MEASURING)
