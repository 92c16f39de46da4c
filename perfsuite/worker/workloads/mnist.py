"""MNIST from the disk, in the files and folders that torchvision uses.

Never another data set in its place: an absent or damaged file is an error that says what to do.
"""

import os
from pathlib import Path

from filelock import FileLock
from torch.utils.data import TensorDataset

from perfsuite.errors import WorkloadError, import_extra
from perfsuite.records.workload import Split

# 5000 of the 60000 training images are for validation.
_VALIDATION_SHARE = 12
_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def mnist(split: Split) -> TensorDataset:
    """Return (image, class) pairs of one of three disjoint parts, images all in memory.

    The files lie in MNIST/raw under the folder that the environment variable `MNIST_ROOT` names, by
    default data/ in the current directory. They are downloaded only if `PERFSUITE_DOWNLOAD` is "1".
    The last twelfth of the training file (5000 of 60000 images) is for validation.

    Images are (1, 28, 28) float32 from 0 for paper to 1 for ink, classes 0 to 9. Raises a
    WorkloadError where a file is absent, could not be downloaded, or is damaged.
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
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if not missing:
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
    return WorkloadError(
        f"MNIST in {root / 'MNIST' / 'raw'} is damaged or partial ({reason}); delete that folder "
        "and fetch MNIST again (PERFSUITE_DOWNLOAD=1 downloads it)"
    )
