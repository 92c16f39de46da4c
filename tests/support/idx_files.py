"""Files in MNIST's format and folders, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    """Write an array of any shape as unsigned bytes."""
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    path.write_bytes(header + values.astype(np.uint8).tobytes())


def write_mnist(root: Path, train: np.ndarray[Any, Any], test: np.ndarray[Any, Any]) -> Path:
    """Write all four files and return their folder; image i is of class i % 10.

    Args:
        root: The folder that MNIST_ROOT names.
        train: Images (N, 28, 28).
        test: Images (N, 28, 28).
    """
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for images, image_file, label_file in (
        (train, TRAIN_IMAGES, TRAIN_LABELS),
        (test, TEST_IMAGES, TEST_LABELS),
    ):
        write_idx(folder / image_file, images)
        write_idx(folder / label_file, np.arange(len(images)) % 10)
    return folder
