"""Tensors by parameter or buffer name, and how far two tensors lie apart, computed in float64."""

import math
from typing import Literal

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Quantity = Literal["gradient", "parameter", "buffer", "loss", "random draw", "update"]


def in_double(tensor: Tensor) -> Tensor:
    """The tensor in float64; a complex one as real numbers with a last dimension of length 2."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def relative_error(tested: Tensor, expected: Tensor) -> float:
    """||tested - expected|| / ||expected||; infinite where shapes differ or a norm is not finite.

    >>> relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]))
    0.2
    """
    return ratio(distance(tested, expected), norm(expected))


def norm(tensor: Tensor) -> float:
    """The Frobenius norm."""
    return float(torch.linalg.vector_norm(in_double(tensor)))


def distance(tested: Tensor, expected: Tensor) -> float:
    """||tested - expected||; infinite where their shapes differ."""
    if tested.shape != expected.shape:
        return math.inf
    return norm(in_double(tested) - in_double(expected))


def ratio(distance: float, size: float) -> float:
    """Distance / size; 0 where both are 0, infinite where only size is 0 or one is not finite."""
    if not (math.isfinite(distance) and math.isfinite(size)):
        return math.inf
    if distance == 0:
        return 0.0
    return distance / size if size > 0 else math.inf
