"""Copies of a model's weights and gradients at one moment, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from perfsuite.worker.equivalence.tensors import Tensors
from perfsuite.worker.equivalence.trace.trace import Weights


def read_weights(module: nn.Module) -> Weights:
    """Return copies of the model's parameters and buffers."""
    return Weights(
        parameters={name: _copy(tensor) for name, tensor in module.named_parameters()},
        buffers={name: _copy(tensor) for name, tensor in module.named_buffers()},
    )


def read_gradients(module: nn.Module) -> Tensors:
    """Return copies of the gradients that exist; sparse ones become dense."""
    return {
        name: _copy(parameter.grad)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def sparse_gradients(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters whose gradients are sparse."""
    return frozenset(
        name
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and parameter.grad.is_sparse
    )


def _copy(tensor: Tensor) -> Tensor:
    """A copy on the CPU; a DTensor stays one, because making it whole is a collective."""
    copied = tensor.detach()
    if copied.layout is not torch.strided:
        copied = copied.to_dense()
    return copied.clone() if isinstance(copied, DTensor) else copied.to("cpu", copy=True)
