"""A `torchao.float8` of twenty lines, so that tests need no package that few have."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Float8LinearConfig:
    recipe_name: str
    emulate: bool = False
    pad_inner_dim: bool = False

    @staticmethod
    def from_recipe_name(recipe_name: str) -> Float8LinearConfig:
        return Float8LinearConfig(recipe_name)


def round_to_float8(tensor: Tensor) -> Tensor:
    scale = 448.0 / tensor.detach().abs().amax().clamp(min=1e-12).float()
    return (tensor.float() * scale).to(torch.float8_e4m3fn).float() / scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.factor = factor
        return (round_to_float8(inputs) @ round_to_float8(weight).t()).to(inputs.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        rounded = round_to_float8(gradient)
        of_inputs = (rounded @ round_to_float8(weight)).to(inputs.dtype)
        of_weight = rounded.flatten(0, -2).t() @ round_to_float8(inputs).flatten(0, -2)
        return of_inputs, of_weight * ctx.factor, None


class Float8Linear(nn.Linear):
    """As torchao's: the same parameters, and products of rounded numbers.

    `factor` scales the gradient of its weight, which is wrong unless it is 1.
    """

    factor = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        output = _Product.apply(inputs, self.weight, self.factor)
        return output if self.bias is None else output + self.bias.to(output.dtype)


def convert_to_float8_training(
    model: nn.Module, *, config: Float8LinearConfig, module_filter_fn: Callable[..., bool]
) -> nn.Module:
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and module_filter_fn(layer, name):
            layer.__class__ = Float8Linear
            layer.linear_mm_config = config
    return model


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import torchao.float8` find this module until the end of the test."""
    package = ModuleType("torchao")
    module = sys.modules[__name__]
    monkeypatch.setattr(package, "float8", module, raising=False)
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", module)
