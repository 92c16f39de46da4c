from __future__ import annotations

import math
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.errors import NonFiniteError
from perfsuite.ranks.messages import MeasurePlan, RunCell
from perfsuite.ranks.pickling import pack
from perfsuite.records.stages import untimed
from perfsuite.worker.jobs import activities
from perfsuite.worker.jobs.activities import Activity, held_by, start_activity
from perfsuite.worker.measure.rounds import choose_num_iterations
from perfsuite.worker.training.step import train_step
from perfsuite.worker.training.trainer import build_trainer

CPU = torch.device("cpu")


def count_samples(outputs: Tensor, target: Tensor) -> Tensor:
    return outputs.mean() * 0 + len(target)


def num_held_states(precision: str) -> int:
    """How many tensors the optimizer of this rank holds beside parameters, after a step."""
    workload = Workload(
        name="two-layers",
        build_model=lambda: nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)),
        build_dataset=lambda split: None,
        loss=nn.functional.mse_loss,
        build_optimizer=torch.optim.Adam,
        micro_batch_size=4,
        metric="none",
    )
    recipe = Recipe(parallel="zero1:2", precision=precision)
    trainer = build_trainer(workload, recipe, device=CPU, seed=0)
    train_step(trainer, iter([(torch.ones(4, 2), torch.ones(4, 3))]), untimed)
    held = {id(tensor): tensor for tensor in held_by(None, trainer.optimizer)}
    return sum(not tensor.requires_grad for tensor in held.values())


@pytest.mark.parametrize("precision", ["fp32", "O2"])
def test_the_state_that_an_optimizer_keeps_in_another_is_held(
    rank_group: Any, precision: str
) -> None:
    # Of each of four parameters one rank has two averages and the number of steps.
    assert sum(rank_group(2, num_held_states, precision)) == 4 * 3


def start_on_ten_samples(activity: Any, recipe: Recipe) -> AbstractContextManager[Activity]:
    workload = Workload(
        name="short-last",
        build_model=lambda: nn.Linear(2, 3),
        build_dataset=lambda split: TensorDataset(torch.zeros(10, 2), torch.zeros(10)),
        loss=count_samples,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        micro_batch_size=4,
        metric="none",
    )
    plan = MeasurePlan(num_rounds=1, num_iterations=1, round_s=None)
    job = RunCell(activity=activity, plan=plan, workload=pack(workload), recipe=recipe)
    start: Any = SimpleNamespace(rank=0, seed=0, folder="", cores=(0,))
    return start_activity(job, start, CPU)


def test_rounds_of_accumulated_batches_hold_whole_epochs() -> None:
    recipe = Recipe(micro_batch_size=1, grad_accumulation_steps=4)

    with start_on_ten_samples("train", recipe) as activity:
        num_steps = choose_num_iterations(0.002, steps_per_epoch=activity.steps_per_epoch)

    assert (num_steps, num_steps * 4 % 10) == (35, 0)


def test_an_evaluation_times_full_batches_alone() -> None:
    with start_on_ten_samples("evaluate", Recipe()) as activity:
        for _ in range(5):
            activity.iterate(untimed)
        activity.check()

        assert activity.losses.by_step() == dict.fromkeys(range(1, 6), 4.0)
        assert activity.global_batch_size == 4


def test_an_evaluation_names_a_late_batch_whose_loss_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = iter([*map(torch.tensor, [1.0] * 11), torch.tensor(math.nan)])
    monkeypatch.setattr(activities, "evaluate_batch", lambda *_: next(losses))
    with start_on_ten_samples("evaluate", Recipe()) as activity:
        for _ in range(12):
            activity.iterate(untimed)

        with pytest.raises(NonFiniteError, match="step 12"):
            activity.check()


@pytest.mark.parametrize(
    ("compiled", "has_compiled_module", "missing"),
    [
        (None, False, {}),
        (({}, 1.0), True, {}),
        (
            ({}, 1.0),
            False,
            {"numerics": "the training calls compiled functions, which its proof ran uncompiled"},
        ),
    ],
)
def test_compiled_functions_that_a_proof_ran_uncompiled_leave_no_numerics(
    monkeypatch: pytest.MonkeyPatch,
    compiled: object,
    has_compiled_module: bool,
    missing: dict[str, str],
) -> None:
    monkeypatch.setattr(activities, "read_compilation", lambda: compiled)
    with start_on_ten_samples("train", Recipe()) as activity:
        if has_compiled_module:
            activity.model.compile(backend="eager")

        assert activity.end(2) == missing
