from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

from perfsuite.worker.workloads.lenet import AugmentedDataset, random_affine


def squares(num_images: int = 8) -> TensorDataset:
    images = torch.zeros(num_images, 1, 28, 28)
    images[:, :, 10:18, 10:18] = 1
    return TensorDataset(images, torch.arange(num_images))


def test_every_load_of_an_image_is_another_one_and_the_target_stays() -> None:
    dataset = AugmentedDataset(squares(), random_affine())

    (once, target), (again, same_target) = dataset[3], dataset[3]

    assert len(dataset) == 8
    assert once.shape == (1, 28, 28)
    assert once.dtype == torch.float32
    assert not torch.equal(once, again)
    assert target == same_target == 3


def test_the_image_in_memory_is_left_as_it_was() -> None:
    originals = squares()
    dataset = AugmentedDataset(originals, random_affine())

    dataset[0]

    assert torch.equal(originals.tensors[0], squares().tensors[0])


def test_the_margins_are_paper_and_the_ink_stays_in_the_picture() -> None:
    torch.manual_seed(0)
    dataset = AugmentedDataset(squares(64), random_affine())

    images = torch.stack([dataset[index][0] for index in range(64)])

    # 64 pixels of ink, scaled by 0.9 to 1.1 in each direction.
    ink = images.sum(dim=(1, 2, 3))
    assert images.min() >= 0
    assert ink.min() > 0.75 * 64
    assert ink.max() < 1.3 * 64
    assert images[:, :, 0].max() == images[:, :, :, 0].max() == 0


def test_the_seed_of_torch_decides_in_the_process_itself() -> None:
    dataset = AugmentedDataset(squares(), random_affine())

    torch.manual_seed(1)
    once = dataset[0][0]
    torch.manual_seed(1)
    again = dataset[0][0]

    assert torch.equal(once, again)


def test_the_seed_of_the_loader_decides_in_its_workers() -> None:
    def epoch(seed: int) -> torch.Tensor:
        loader = DataLoader(
            AugmentedDataset(squares(), random_affine()),
            batch_size=2,
            num_workers=2,
            generator=torch.Generator().manual_seed(seed),
            multiprocessing_context="fork",
        )
        return torch.cat([images for images, _ in loader])

    first, same, other = epoch(1), epoch(1), epoch(2)

    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    # Two workers, so two different sequences.
    assert not torch.equal(first[0], first[2])
