from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from perfsuite import Recipe, Workload
from perfsuite.training.trainer import Trainer, build_trainer

CPU = torch.device("cpu")


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def _classes(split: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(24, 6, generator=generator)
    return TensorDataset(inputs, torch.arange(24) % 3)


@pytest.fixture
def make_workload() -> Callable[..., Workload]:
    """(any field of a Workload) -> a small classifier, those fields replaced."""

    def make(**fields: Any) -> Workload:
        defaults: dict[str, Any] = {
            "name": "small",
            "build_model": _mlp,
            "build_dataset": _classes,
            "loss": nn.functional.cross_entropy,
            "build_optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            "micro_batch_size": 4,
        }
        return Workload(**{**defaults, **fields})

    return make


@pytest.fixture
def make_trainer(make_workload: Callable[..., Workload]) -> Callable[..., Trainer]:
    """(workload=None, any field of a Recipe) -> a trainer on the CPU, from seed 5."""

    def make(workload: Workload | None = None, **fields: Any) -> Trainer:
        return build_trainer(workload or make_workload(), Recipe(**fields), device=CPU, seed=5)

    return make


@pytest.fixture
def run_ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """(num_ranks, function, *args) -> what each rank of a real gloo group returned."""

    def run(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.tensor"])
        ranks, pipes = [], []
        for rank in range(num_ranks):
            receiver, sender = context.Pipe(duplex=False)
            work = (str(tmp_path / "store"), rank, num_ranks, sender, function, args)
            process = context.Process(target=_be_rank, args=work, daemon=True)
            process.start()
            # Closed here, so that the pipe ends when the rank does.
            sender.close()
            ranks.append(process)
            pipes.append(receiver)
        results = [pipe.recv() for pipe in pipes]
        for process in ranks:
            process.join()
        return results

    return run


def _be_rank(
    store_path: str,
    rank: int,
    num_ranks: int,
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store_path, num_ranks),
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=20),
    )
    sender.send(function(*args))
    dist.destroy_process_group()
