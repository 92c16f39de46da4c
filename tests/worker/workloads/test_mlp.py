from __future__ import annotations

from collections.abc import Callable

import torch

from perfsuite.worker.workloads.mlp import teacher_data, toy_mlp
from perfsuite.worker.workloads.splits import SYNTHETIC_SIZES


def test_the_toy_mlp_learns_the_teachers_rule(train: Callable[..., list[float]]) -> None:
    workload = toy_mlp()
    torch.manual_seed(0)
    model = workload.build_model()

    losses = train(workload, model, 192)

    features, labels = teacher_data("validation").tensors
    accuracy = (model(features).argmax(dim=1) == labels).float().mean()
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert accuracy > 0.4  # 0.1 is chance


def test_the_parts_have_their_sizes_and_share_no_sample() -> None:
    parts = [teacher_data(split).tensors[0] for split in SYNTHETIC_SIZES]

    assert [len(part) for part in parts] == [2048, 256, 256]
    assert len(torch.cat(parts).unique(dim=0)) == 2560


def test_every_class_occurs() -> None:
    assert teacher_data("train").tensors[1].unique().tolist() == list(range(10))
