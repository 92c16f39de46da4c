"""Random affine augmentation, one image at a time, as loader workers do it.

Must not know which images. All randomness is torch's default generator, so the seed of the loader
worker, or of the rank where there is none, decides.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

# Small enough that a digit stays the digit it is, and stays in the picture.
MAX_ROTATION_DEGREES = 10
MAX_SHIFT_RATIO = 0.1
SCALES = (0.9, 1.1)


class AugmentedDataset(Dataset[tuple[Tensor, Tensor]]):
    """The items of `dataset`, each input transformed anew whenever it is loaded."""

    def __init__(self, dataset: TensorDataset, transform: Callable[[Tensor], Tensor]) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, target = self.dataset[index]
        return self.transform(image), target


def random_affine() -> Callable[[Tensor], Tensor]:
    """Return a transform of a (C, H, W) image: rotated, shifted and scaled, filled with 0."""
    # Here and not at the top: only this variant is to pay for it (1.1 s beside torch).
    from torchvision.transforms import InterpolationMode, v2

    transform: Callable[[Tensor], Tensor] = v2.RandomAffine(
        degrees=MAX_ROTATION_DEGREES,
        translate=(MAX_SHIFT_RATIO, MAX_SHIFT_RATIO),
        scale=SCALES,
        interpolation=InterpolationMode.BILINEAR,
    )
    return transform
