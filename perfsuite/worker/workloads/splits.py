"""Cutting prepared data into their training, validation and test parts."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from perfsuite.records.workload import Split

# Of synthetic data, which are the same on every rank and in every cell, whatever the cell's seed.
SYNTHETIC_SIZES: dict[Split, int] = {"train": 2048, "validation": 256, "test": 256}
SYNTHETIC_SEED = 20


def take_split(split: Split, sizes: Mapping[Split, int], *tensors: Tensor) -> TensorDataset:
    """Return one of the consecutive parts that `sizes` cuts the tensors' first dimension into."""
    index = list(sizes).index(split)
    return TensorDataset(*(torch.split(tensor, list(sizes.values()))[index] for tensor in tensors))
