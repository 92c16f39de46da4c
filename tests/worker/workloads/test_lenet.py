from __future__ import annotations

from collections.abc import Callable

import torch

from perfsuite.worker.workloads.digits import digits
from perfsuite.worker.workloads.lenet import AugmentedDataset, lenet_digits, lenet_digits_affine


def test_lenet_learns_to_read_digits(train: Callable[..., list[float]]) -> None:
    workload = lenet_digits()
    torch.manual_seed(0)
    model = workload.build_model()

    losses = train(workload, model, 4 * 37)

    images, labels = digits("test", image_size=28).tensors
    accuracy = (model(images).argmax(dim=1) == labels).float().mean()
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    assert accuracy > 0.85


def test_lenet_is_as_large_as_its_paper_with_full_connections() -> None:
    # 156 + 2416 + 48120 + 10164 + 850 by hand: (inputs + 1) * outputs of each layer.
    num_parameters = sum(p.numel() for p in lenet_digits().build_model().parameters())

    assert num_parameters == 61706


def test_only_the_training_images_are_augmented() -> None:
    plain, augmented = lenet_digits(), lenet_digits_affine()

    training = augmented.build_dataset("train")

    assert isinstance(training, AugmentedDataset)
    assert torch.equal(training.dataset.tensors[0], digits("train", image_size=28).tensors[0])
    for split in ("validation", "test"):
        theirs, ours = plain.build_dataset(split), augmented.build_dataset(split)
        assert theirs is not None
        assert ours is not None
        assert torch.equal(theirs[0][0], ours[0][0])
