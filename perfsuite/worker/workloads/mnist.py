"""MNIST from the disk, in the files and folders that torchvision uses.

Never another data set in its place: an absent or damaged file is an error that says what to do.
"""

import math
import os
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import TensorDataset

from perfsuite.errors import WorkloadError, import_extra
from perfsuite.records.workload import Split

# The place of the data belongs to the machine, not to a cell: these are variables, not options.
ROOT_VARIABLE = "MNIST_ROOT"
DOWNLOAD_VARIABLE = "PERFSUITE_DOWNLOAD"
DEFAULT_ROOT = "data"

IMAGE_SIZE = 28
NUM_CLASSES = 10
# 5000 of the 60000 training images are for validation.
_VALIDATION_SHARE = 12

_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def mnist(split: Split) -> TensorDataset:
    """Return (image, class) pairs of one of three disjoint parts, images all in memory.

    The files lie in MNIST/raw under the folder that the environment variable `MNIST_ROOT` names, by
    default data/ in the current directory. They are downloaded only if `PERFSUITE_DOWNLOAD` is "1".
    The last twelfth of the training file (5000 of 60000 images) is for validation.

    Images are (1, 28, 28) float32 from 0 for paper to 1 for ink, classes 0 to 9. Raises a
    WorkloadError where a file is absent, could not be downloaded, or is damaged.
    """
    folder = _find_files()
    image_file, label_file = _FILES["test" if split == "test" else "train"]
    images = _read_idx(folder / image_file, num_dimensions=3)
    labels = _read_idx(folder / label_file, num_dimensions=1)
    if len(images) != len(labels):
        raise _damaged(folder / label_file, f"it has {len(labels)} labels for {len(images)} images")
    if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE):
        size = "x".join(map(str, images.shape[1:]))
        raise _damaged(folder / image_file, f"its images are {size}, not 28x28")
    if (labels >= NUM_CLASSES).any():
        raise _damaged(
            folder / label_file, f"it has a label {int(labels.max())}, and 9 is the last"
        )
    if split != "test":
        num_train = len(labels) - len(labels) // _VALIDATION_SHARE
        part = slice(num_train) if split == "train" else slice(num_train, None)
        images, labels = images[part], labels[part]
    return TensorDataset(images.unsqueeze(1) / 255, labels.long())


def _find_files() -> Path:
    """Return the folder with all four files; `PERFSUITE_DOWNLOAD` lets it download them."""
    root = Path(os.environ.get(ROOT_VARIABLE, DEFAULT_ROOT)).absolute()
    folder = root / "MNIST" / "raw"
    names = [name for files in _FILES.values() for name in files]
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return folder
    if os.environ.get(DOWNLOAD_VARIABLE) == "1":
        _download(root)
        return folder
    origin = ROOT_VARIABLE if ROOT_VARIABLE in os.environ else f"the default, {DEFAULT_ROOT}/"
    raise WorkloadError(
        f"MNIST is not on disk: {folder} ({origin}) has no {', '.join(missing)}; "
        f"set {ROOT_VARIABLE} to the folder that holds MNIST/raw, or set {DOWNLOAD_VARIABLE}=1 "
        "to download it there, or use lenet-digits, which needs no download"
    )


def _download(root: Path) -> None:
    datasets = import_extra("torchvision.datasets", "workloads")
    try:
        root.mkdir(parents=True, exist_ok=True)
        # One rank downloads; the others wait, and then find the files.
        with FileLock(root / ".mnist.lock"):
            datasets.MNIST(root, download=True)
    except (RuntimeError, OSError) as error:
        raise WorkloadError(
            f"MNIST could not be downloaded to {root} ({DOWNLOAD_VARIABLE}=1): {error}; "
            f"copy its four files to {root / 'MNIST' / 'raw'}, or use lenet-digits"
        ) from error


def _read_idx(path: Path, *, num_dimensions: int) -> Tensor:
    """Return the uint8 tensor of an IDX file (LeCun, Cortes and Burges, "The MNIST database").

    torchvision's reader raises AssertionError for a damaged file, or accepts it.
    """
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from error
    # Two zeros, 8 for unsigned bytes, the number of dimensions, then each as 4 bytes, high first.
    magic = bytes([0, 0, 8, num_dimensions])
    num_header_bytes = 4 + 4 * num_dimensions
    header = content[:num_header_bytes].tobytes()
    if len(header) < num_header_bytes or not header.startswith(magic):
        raise _damaged(path, f"it does not begin with the header of {num_dimensions}-d bytes")
    shape = np.frombuffer(header, dtype=">u4", offset=4).tolist()
    values = content[num_header_bytes:]
    if len(values) != math.prod(shape):
        raise _damaged(
            path, f"its header announces {math.prod(shape)} bytes and {len(values)} follow"
        )
    return torch.from_numpy(values).view(shape)


def _damaged(path: Path, reason: str) -> WorkloadError:
    return WorkloadError(
        f"{path} is damaged or partial: {reason}; delete the folder {path.parent} and fetch MNIST "
        f"again ({DOWNLOAD_VARIABLE}=1 downloads it)"
    )
