"""Where a command trains, read from the optimizer whose step ends its first step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from perfsuite.worker.training.optimizers import device_of


def optimizer_on(*devices: str) -> SimpleNamespace:
    places = [torch.device(device) for device in devices]
    parameters = [SimpleNamespace(device=one, is_cuda=one.type == "cuda") for one in places]
    return SimpleNamespace(param_groups=[{"params": []}, {"params": parameters}])


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (optimizer_on("cpu", "cuda:1", "cuda:0"), "cuda:1"),
        (optimizer_on("cpu"), "cuda:3"),
        (None, "cuda:3"),
    ],
)
def test_a_command_trains_on_the_device_of_its_parameters_not_on_the_one_that_is_set(
    monkeypatch: pytest.MonkeyPatch, optimizer: object, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)

    assert device_of(optimizer) == torch.device(expected)


def test_a_command_without_cuda_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)

    assert device_of(optimizer_on("cpu")) == torch.device("cpu")
