from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.ranks.messages import MeasurePlan, RunCell
from perfsuite.ranks.pickling import pack
from perfsuite.records.stages import untimed
from perfsuite.worker.jobs.activities import start_activity

CPU = torch.device("cpu")


def count_samples(outputs: Tensor, target: Tensor) -> Tensor:
    return outputs.mean() * 0 + len(target)


def test_an_evaluation_times_full_batches_alone() -> None:
    workload = Workload(
        name="short-last",
        build_model=lambda: nn.Linear(2, 3),
        build_dataset=lambda split: TensorDataset(torch.zeros(10, 2), torch.zeros(10)),
        loss=count_samples,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        micro_batch_size=4,
        metric="none",
    )
    job = RunCell(
        activity="evaluate",
        plan=MeasurePlan(num_rounds=1, num_iterations=1, round_s=None),
        workload=pack(workload),
        recipe=Recipe(),
    )
    start: Any = SimpleNamespace(rank=0, seed=0, folder="", cores=(0,))

    with start_activity(job, start, CPU) as activity:
        for _ in range(5):
            activity.iterate(untimed)

        assert activity.first_losses() == (4.0,) * 5
        assert activity.global_batch_size == 4
