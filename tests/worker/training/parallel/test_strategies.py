from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from perfsuite import Recipe, Workload
from perfsuite.errors import RecipeError
from perfsuite.worker.training.trainer import choose_strategy

CPU = torch.device("cpu")


def shards(workload: Workload, parallel: str) -> tuple[int, int, bool]:
    workload = dataclasses.replace(workload, parallelize=lambda model, mesh: model)
    strategy = choose_strategy(workload, Recipe(parallel=parallel), device=CPU)
    return strategy.shard_index, strategy.num_shards, strategy.splits_parameters


def test_a_single_process_needs_no_group(make_image: Any) -> None:
    assert shards(make_image(), "single") == (0, 1, False)


@pytest.mark.parametrize(
    ("parallel", "second"),
    [
        ("ddp:2", (1, 2, False)),
        ("zero1:2", (1, 2, False)),
        ("horovod-like:2", (1, 2, False)),
        ("fsdp:2", (1, 2, True)),
        ("zero2:2", (1, 2, True)),
        ("hsdp:1x2", (1, 2, True)),
        ("tp:2", (0, 1, True)),
        ("pp:2", (0, 1, True)),
        ("mp:2", (0, 1, True)),
        ("mesh:tp=2", (0, 1, False)),
        ("mesh:fsdp=2", (1, 2, False)),
    ],
)
def test_ranks_load_the_same_data_only_where_they_compute_one_batch_together(
    rank_group: Any, make_image: Any, parallel: str, second: tuple[int, int, bool]
) -> None:
    assert rank_group(2, shards, make_image(), parallel)[1] == second


def refusal_over_nccl(workload: Workload, parallel: str) -> str:
    """What a model with sparse gradients is told; torch is told of NCCL in this process alone."""
    dist.get_backend = lambda *_: "nccl"
    strategy = choose_strategy(workload, Recipe(parallel=parallel), device=CPU)
    with pytest.raises(RecipeError) as refusal:
        strategy.wrap(nn.Sequential(nn.Embedding(4, 2, sparse=True)))
    return str(refusal.value)


@pytest.mark.parametrize("parallel", ["ddp:1", "zero1:1", "fsdp:1", "horovod-like:1"])
def test_sparse_gradients_are_refused_over_nccl_in_every_mode(
    rank_group: Any, make_text: Any, parallel: str
) -> None:
    assert rank_group(1, refusal_over_nccl, make_text(), parallel) == [
        "NCCL reduces dense gradients alone, and those of layer '0' are sparse; use sparse=False"
    ]
