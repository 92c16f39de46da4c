"""Cutting prepared data into their training, validation and test parts."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from perfsuite.records.workload import Split


def take_split(split: Split, sizes: Mapping[Split, int], *tensors: Tensor) -> TensorDataset:
    """Return one of the consecutive parts that `sizes` cuts the tensors' first dimension into."""
    index = list(sizes).index(split)
    return TensorDataset(*(torch.split(tensor, list(sizes.values()))[index] for tensor in tensors))
