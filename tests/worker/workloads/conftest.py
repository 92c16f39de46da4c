from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

from perfsuite import Workload


@pytest.fixture
def train() -> Callable[[Workload, torch.nn.Module, int], list[float]]:
    """(workload, model, number of steps) -> the loss of each step, batches from seed 0."""

    def run(workload: Workload, model: torch.nn.Module, num_steps: int) -> list[float]:
        dataset = workload.build_dataset("train")
        assert dataset is not None
        loader = DataLoader(
            dataset,
            batch_size=workload.micro_batch_size,
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(0),
        )
        trainable = (parameter for parameter in model.parameters() if parameter.requires_grad)
        optimizer = workload.build_optimizer(trainable)
        losses: list[float] = []
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        for inputs, targets in itertools.islice(epochs, num_steps):
            loss = workload.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return run
