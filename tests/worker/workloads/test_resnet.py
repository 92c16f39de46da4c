from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchvision.models.resnet import BasicBlock

from perfsuite.worker.workloads.resnet import resnet18

pytestmark = pytest.mark.slow


def test_resnet18_learns_to_read_digits(train: Callable[..., list[float]]) -> None:
    workload = resnet18()
    torch.manual_seed(0)

    losses = train(workload, workload.build_model(), 25)

    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])


def test_the_blocks_are_the_eight_basic_blocks_in_order() -> None:
    workload = resnet18()
    model = workload.build_model()

    assert workload.blocks is not None
    assert workload.blocks(model) == [m for m in model.modules() if isinstance(m, BasicBlock)]


def test_the_images_are_32x32_in_three_equal_channels() -> None:
    dataset = resnet18().build_dataset("validation")

    assert dataset is not None
    image, _ = dataset[0]
    assert image.shape == (3, 32, 32)
    assert torch.equal(image[0], image[2])
