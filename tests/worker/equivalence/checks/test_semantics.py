"""T1 of recorded steps, in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.worker.equivalence.checks import semantics
from perfsuite.worker.equivalence.comparison import scaled
from perfsuite.worker.equivalence.proof import Case, Proof
from perfsuite.worker.equivalence.references.single_process import IncomparableError
from perfsuite.worker.equivalence.trace.recording import record_run
from perfsuite.worker.equivalence.trace.trace import join_traces
from perfsuite.worker.training.trainer import build_trainer

RECIPE = Recipe(grad_accumulation_steps=2)


@pytest.mark.parametrize("factor", [1, 2])
def test_a_later_step_that_cannot_be_compared_excuses_no_earlier_mismatch(
    monkeypatch: pytest.MonkeyPatch,
    perceptron_workload: Callable[..., Workload],
    points: Callable[[int], TensorDataset],
    factor: int,
) -> None:
    workload, device, judge = perceptron_workload(), torch.device("cpu"), semantics._judge
    trainer = build_trainer(workload, RECIPE, device=device, seed=0)
    batches = iter(torch.utils.data.DataLoader(points(64), batch_size=8))
    trace = join_traces([record_run(trainer, batches, num_steps=2, on_step=lambda: None)])
    first = trace.steps[0]._replace(gradients=scaled(trace.steps[0].gradients, factor))
    trace = dataclasses.replace(trace, steps=[first, trace.steps[1]])

    def judge_first(references: Any, step: Any, number: int) -> Any:
        if number > 1:
            raise IncomparableError("no")
        return judge(references, step, number)

    monkeypatch.setattr(semantics, "_judge", judge_first)
    case = Case(
        workload=workload,
        recipe=RECIPE,
        device=device,
        seed=0,
        num_steps=2,
        trace=trace,
        twin=None,
        on_step=lambda: None,
    )
    found = semantics.check_semantics(case)

    assert isinstance(found, Proof) == (factor == 2)
    if isinstance(found, Proof):
        row = found.conclude(RECIPE)
        assert row.status == "mismatch"
        assert " differs at step 1 by 1.0e+00" in row.reason
