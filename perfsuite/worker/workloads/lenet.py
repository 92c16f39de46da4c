"""LeNet-5 on handwritten digits, as scanned or with a random affine augmentation.

Images are augmented one at a time, as loader workers do it. All randomness is torch's default
generator, so the loader worker's seed decides, else the rank's. Shapes: B images of a batch.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset

from perfsuite.errors import import_extra
from perfsuite.records.workload import Split, Workload
from perfsuite.worker.workloads.digits import digits, mnist

# On the digits, ten epochs at this rate have none with a setback; at 0.1 some have.
_LEARNING_RATE = 0.05

_digits_28x28 = partial(digits, image_size=28)


def build_lenet() -> nn.Sequential:
    """Return LeNet-5, (B, 1, 28, 28) -> (B, 10), as a chain of four blocks.

    LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document Recognition",
    1998, with today's usual full connections and plain classifier. Its tanh and averages stay: they
    are smooth, so that no rounding grows to another branch of the gradient, as at kinks.
    """
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2)),
            conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
            hidden=nn.Sequential(
                nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh()
            ),
            classifier=nn.Linear(84, 10),
        )
    )


class AugmentedDataset(Dataset[tuple[Tensor, Tensor]]):
    """The items of `dataset`, each image transformed whenever it is loaded."""

    def __init__(self, dataset: TensorDataset, transform: Callable[[Tensor], Tensor]) -> None:
        self.dataset, self.transform = dataset, transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, target = self.dataset[index]
        return self.transform(image), target


def random_affine() -> Callable[[Tensor], Tensor]:
    """Return a transform of a (C, H, W) image: rotated, shifted and scaled, filled with 0."""
    # Imported here, because it takes 1.1 s and only this variant needs it.
    v2 = import_extra("torchvision.transforms.v2", "workloads")
    bilinear = v2.InterpolationMode.BILINEAR
    # Small enough that a digit stays the same digit, and stays in the picture.
    transform: Callable[[Tensor], Tensor] = v2.RandomAffine(
        degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1), interpolation=bilinear
    )
    return transform


def _workload(name: str, build_dataset: Callable[[Split], Dataset[object]]) -> Workload:
    return Workload(
        name=name,
        build_model=build_lenet,
        build_dataset=build_dataset,
        loss=F.cross_entropy,
        build_optimizer=partial(SGD, lr=_LEARNING_RATE, momentum=0.9),
        blocks=list,
    )


def _augmented(build_dataset: Callable[[Split], TensorDataset], split: Split) -> Dataset[object]:
    dataset = build_dataset(split)
    return AugmentedDataset(dataset, random_affine()) if split == "train" else dataset


# Of scikit-learn's digits, enlarged to MNIST's 28x28 pixels, 1200 are for training, 300 for
# validation and 297 for the test; test accuracy is about 97 % after ten epochs. Of MNIST's images
# 55000, 5000 and 10000. The variants "affine" augment the training images.
lenet_digits = partial(_workload, "lenet-digits", _digits_28x28)
lenet_digits_affine = partial(_workload, "lenet-digits-affine", partial(_augmented, _digits_28x28))
lenet_mnist = partial(_workload, "lenet-mnist", mnist)
lenet_mnist_affine = partial(_workload, "lenet-mnist-affine", partial(_augmented, mnist))
