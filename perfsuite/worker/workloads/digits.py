"""Handwritten digits: the 1797 scans that scikit-learn carries, and MNIST from the disk.

The scans have 8x8 pixels of 17 grey levels (E. Alpaydin and C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998). Neither stands in for the other: an
absent or damaged file is an error that says what to do.
"""

import functools
import importlib.util
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from filelock import FileLock
from torch import Tensor
from torch.utils.data import TensorDataset

from perfsuite.errors import MissingPackageError, WorkloadError, import_extra, missing_package
from perfsuite.records.workload import Split
from perfsuite.worker.workloads.splits import take_split

SPLIT_SIZES: dict[Split, int] = {"train": 1200, "validation": 300, "test": 297}

_SCAN_SIZE = 8
_LARGEST_GREY = 16
# The file is sorted by writer, so it is shuffled before it is split, alike on every rank and cell.
_SHUFFLE_SEED = 20
# 5000 of the 60000 training images are for validation.
_VALIDATION_SHARE = 12
_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def digits(split: Split, *, image_size: int, num_channels: int = 1) -> TensorDataset:
    """Return (image, class) pairs of one of three disjoint parts, images all in memory.

    The scans are enlarged bilinearly to (num_channels, image_size, image_size), float32 from 0 for
    paper to 1 for ink, with equal channels. Classes are 0 to 9.
    """
    scans, labels = _read_scans()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SHUFFLE_SEED))
    scans, labels = take_split(split, SPLIT_SIZES, scans[order], labels[order]).tensors
    images = F.interpolate(scans, size=(image_size, image_size), mode="bilinear")
    return TensorDataset(images.repeat(1, num_channels, 1, 1), labels)


@functools.cache
def _read_scans() -> tuple[Tensor, Tensor]:
    """Return all scans (1797, 1, 8, 8) from 0 to 1 and their classes (1797,), in file order."""
    # sklearn.datasets.load_digits reads the same file, but importing it takes 0.7 s in each rank
    # and reading the file takes 4 ms. find_spec imports nothing.
    if (package := importlib.util.find_spec("sklearn")) is None or package.origin is None:
        raise MissingPackageError(missing_package("scikit-learn", "workloads"))
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.uint8))
    except OSError as error:
        found = f"the handwritten digits of scikit-learn cannot be read from {path}"
        advice = "pip install --force-reinstall scikit-learn"
        raise WorkloadError(f"{found}: {error.strerror or error}; {advice}") from error
    return table[:, :-1].view(-1, 1, _SCAN_SIZE, _SCAN_SIZE) / _LARGEST_GREY, table[:, -1].long()


def mnist(split: Split) -> TensorDataset:
    """Return (image, class) pairs of one of three disjoint parts, images all in memory.

    The files lie, as torchvision puts them, in MNIST/raw under the folder that the environment
    variable `MNIST_ROOT` names, by default data/ in the current directory. They are downloaded only
    if `PERFSUITE_DOWNLOAD` is "1". Images are (1, 28, 28) float32, 1 for ink, classes 0 to 9.
    """
    root = _find_root()
    try:
        found = import_extra("torchvision.datasets", "workloads").MNIST(root, train=split != "test")
    # What torchvision raises where a file is damaged.
    except (AssertionError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise _unreadable(root, f"{type(error).__name__}: {error}") from error
    images, labels = found.data, found.targets
    if images.shape != (len(labels), 28, 28):
        raise _unreadable(root, f"{len(labels)} labels for images {tuple(images.shape)}")
    if (labels > 9).any():
        raise _unreadable(root, f"it has a label {int(labels.max())}, and 9 is the last")
    if split != "test":
        num_train = len(labels) - len(labels) // _VALIDATION_SHARE
        part = slice(num_train) if split == "train" else slice(num_train, None)
        images, labels = images[part], labels[part]
    return TensorDataset(images.unsqueeze(1) / 255, labels)


def _find_root() -> Path:
    # The place of the data belongs to the machine, not to a cell: these are variables, not options.
    root = Path(os.environ.get("MNIST_ROOT", "data")).absolute()
    folder = root / "MNIST" / "raw"
    if not (missing := [name for name in _FILES if not (folder / name).is_file()]):
        return root
    if os.environ.get("PERFSUITE_DOWNLOAD") != "1":
        origin = "MNIST_ROOT" if "MNIST_ROOT" in os.environ else "the default, data/"
        raise WorkloadError(
            f"MNIST is not on disk: {folder} ({origin}) has no {', '.join(missing)}; "
            "set MNIST_ROOT to the folder that holds MNIST/raw, or set PERFSUITE_DOWNLOAD=1 "
            "to download it there, or use lenet-digits, which needs no download"
        )
    datasets = import_extra("torchvision.datasets", "workloads")
    try:
        root.mkdir(parents=True, exist_ok=True)
        # One rank downloads; the others wait, and then find the files.
        with FileLock(root / ".mnist.lock"):
            datasets.MNIST(root, download=True)
    except (RuntimeError, OSError) as error:
        raise WorkloadError(
            f"MNIST could not be downloaded to {root} (PERFSUITE_DOWNLOAD=1): {error}; "
            f"copy its four files to {folder}, or use lenet-digits"
        ) from error
    return root


def _unreadable(root: Path, reason: str) -> WorkloadError:
    found = f"MNIST in {root / 'MNIST' / 'raw'} is damaged or partial ({reason})"
    advice = "delete that folder and fetch MNIST again (PERFSUITE_DOWNLOAD=1 downloads it)"
    return WorkloadError(f"{found}; {advice}")
