from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from perfsuite import Recipe, Workload
from perfsuite.worker.training.trainer import Trainer, build_trainer

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
def die_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Callable[[], None]]]:
    """(method of torch's iterator) -> what has loader worker 0 end, with code 3, as it begins."""
    ours, theirs = os.pipe()

    def wait_for_the_end() -> None:
        os.read(ours, 1)
        os._exit(3)

    def begin_in(name: str) -> Callable[[], None]:
        gc.collect()  # an earlier test's iterator is ended as it is collected
        method = getattr(_MultiProcessingDataLoaderIter, name)

        def begin(self: Any, *arguments: Any, **known: Any) -> Any:
            monkeypatch.setattr(_MultiProcessingDataLoaderIter, name, method)
            os.write(theirs, b"1")
            os.waitid(os.P_PID, self._workers[0].pid, os.WEXITED | os.WNOWAIT)
            return method(self, *arguments, **known)

        monkeypatch.setattr(_MultiProcessingDataLoaderIter, name, begin)
        return start_worker

    def start_worker() -> None:
        if get_worker_info().id == 0:
            threading.Thread(target=wait_for_the_end, daemon=True).start()

    yield begin_in
    os.close(ours)
    os.close(theirs)


@pytest.fixture
def make_trainer(make_workload: Callable[..., Workload]) -> Callable[..., Trainer]:
    """(workload=None, any field of a Recipe) -> a trainer on the CPU, from seed 5."""

    def make(workload: Workload | None = None, **fields: Any) -> Trainer:
        return build_trainer(workload or make_workload(), Recipe(**fields), device=CPU, seed=5)

    return make
