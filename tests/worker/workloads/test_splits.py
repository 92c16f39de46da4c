from __future__ import annotations

import torch

from perfsuite.records.workload import Split
from perfsuite.worker.workloads.splits import take_split

SIZES: dict[Split, int] = {"train": 3, "validation": 2, "test": 1}


def test_the_parts_follow_each_other_and_keep_the_tensors_together() -> None:
    numbers = torch.arange(6)

    parts = {split: take_split(split, SIZES, numbers, 10 * numbers) for split in SIZES}

    assert parts["train"].tensors[0].tolist() == [0, 1, 2]
    assert parts["validation"].tensors[0].tolist() == [3, 4]
    assert parts["test"].tensors[0].tolist() == [5]
    assert parts["validation"].tensors[1].tolist() == [30, 40]
