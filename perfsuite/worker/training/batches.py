"""The tensors of a batch: how they are found and cast, and how they reach device and model."""

import copy
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same nest of tuples, lists and dicts with `function` applied to each tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        parts = {key: map_tensors(part, function) for key, part in value.items()}
        return replace_values(value, parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(part, function) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(part, function) for part in value)
    return value


def replace_values(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Other values in a mapping of the same class, which may show its items as attributes."""
    if not isinstance(mapping, dict | UserDict):
        return values  # another may be read-only
    copied = copy.copy(mapping)
    for key, value in values.items():  # transformers' ModelOutput refuses `update`
        copied[key] = value
    return copied


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a nest of tuples, lists and dicts, in order."""
    found: list[Tensor] = []
    map_tensors(value, found.append)
    return found


def num_samples(value: Any) -> int:
    """How many samples inputs or targets hold: the first dimension of the first tensor, else 0."""
    return next((tensor.shape[0] for tensor in tensors_in(value) if tensor.dim()), 0)


def cast_floating(value: Any, dtype: torch.dtype) -> Any:
    """The same value with each floating tensor in `dtype`; integers and masks stay."""
    return map_tensors(value, lambda one: one.to(dtype) if one.is_floating_point() else one)


def copy_to_device(value: Any, device: torch.device, *, non_blocking: bool) -> Any:
    """The same value on `device`; with `non_blocking` pinned memory may still be copied."""
    if device.type == "cpu":
        return value  # loaders load there
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """The model's outputs: `model(**inputs)` for a dict, `model(*inputs)` for a tuple or list."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, list | tuple) else model(inputs)
