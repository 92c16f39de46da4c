"""Real handwritten digits without a download: the 1797 scans that scikit-learn carries.

8x8 pixels of 17 grey levels (E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
Digits", UCI Machine Learning Repository, 1998).
"""

import functools
import importlib.util
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import TensorDataset

from perfsuite.errors import MissingPackageError, WorkloadError, missing_package
from perfsuite.records.workload import Split
from perfsuite.worker.workloads.splits import take_split

SPLIT_SIZES: dict[Split, int] = {"train": 1200, "validation": 300, "test": 297}

_SCAN_SIZE = 8
_LARGEST_GREY = 16
# The file is sorted by writer, so it is shuffled before it is split, alike on every rank and cell.
_SHUFFLE_SEED = 20


def digits(split: Split, *, image_size: int, num_channels: int = 1) -> TensorDataset:
    """Return (image, class) pairs of one of three disjoint parts, images all in memory.

    The scans are enlarged bilinearly to (num_channels, image_size, image_size), float32 from 0 for
    paper to 1 for ink, with equal channels. Classes are 0 to 9. Raises a MissingPackageError
    without scikit-learn, and a WorkloadError without its file.
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
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingPackageError(missing_package("scikit-learn", "workloads"))
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.uint8))
    except OSError as error:
        raise WorkloadError(
            f"the handwritten digits of scikit-learn cannot be read from {path}: "
            f"{error.strerror or error}; pip install --force-reinstall scikit-learn"
        ) from error
    return table[:, :-1].view(-1, 1, _SCAN_SIZE, _SCAN_SIZE) / _LARGEST_GREY, table[:, -1].long()
