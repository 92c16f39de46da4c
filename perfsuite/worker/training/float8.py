"""Linear layers that multiply numbers of 8 bits: torchao's, emulated where the device has none."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from perfsuite.errors import NotExercisedError, RecipeError
from perfsuite.records.capability import Hardware, why_not_timed
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training.batches import cast_floating
from perfsuite.worker.training.forwards import wrap_forward
from perfsuite.worker.training.mixed_precision import PrecisionPolicy

# What the kernels of 8 bits divide a matrix into (torch._scaled_mm).
_DIVISOR = 16


def use_float8(
    model: nn.Module, workload: Workload, policy: PrecisionPolicy, device: torch.device
) -> nn.Module:
    """Return the model with torchao's linear layers, if the policy has any; weights stay the same.

    Raises a NotExercisedError without torchao, and a RecipeError for a model without such a layer.
    """
    if policy.float8_recipe is None:
        return model
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:  # it is there, and was not built for this torch
        raise NotExercisedError(
            f"precision {policy.name!r} needs the package torchao, which cannot be imported: "
            f"{error}"
        ) from error
    on_cuda = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_cuda else None
    hardware = Hardware(device=device.type, compute_capability=capability)
    config = dataclasses.replace(
        Float8LinearConfig.from_recipe_name(policy.float8_recipe),
        emulate=why_not_timed(Recipe(precision=policy.name), hardware) is not None,
        pad_inner_dim=True,
    )
    layers = [layer for layer in model.modules() if _can_be_float8(layer)]
    if not layers:
        raise RecipeError(
            f"precision {policy.name!r} needs an nn.Linear whose in_features and out_features are "
            f"divisible by {_DIVISOR}; workload {workload.name!r} has none; use "
            "precision='amp-bf16'"
        )
    model = convert_to_float8_training(
        model, config=config, module_filter_fn=lambda layer, _: _can_be_float8(layer)
    )

    def wrapper(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        # torchao asks for the autocast of CUDA alone, so it is given what that would cast.
        with torch.autocast(device.type, enabled=False):
            low = torch.bfloat16
            return forward(*cast_floating(args, low), **cast_floating(kwargs, low))

    for layer in model.modules():
        if hasattr(layer, "linear_mm_config"):
            wrap_forward(layer, wrapper)
    return model


def _can_be_float8(layer: nn.Module) -> bool:
    # A subclass may compute otherwise, and nn.MultiheadAttention never calls its own.
    return (
        type(layer) is nn.Linear
        and layer.in_features % _DIVISOR == 0
        and layer.out_features % _DIVISOR == 0
    )
