"""Activation checkpointing of a model's blocks (Chen et al. 2016): what is kept for backward."""

import functools
import inspect
import itertools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from perfsuite.errors import RecipeError, WorkloadError
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import Workload
from perfsuite.worker.training.forwards import run_as_one, wrap_forward

_aten = torch.ops.aten

# What "selective" keeps: the products. Their time grows cubically, their outputs quadratically.
_PRODUCTS = (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution)
_SAVED_PRODUCTS = frozenset(product.default for product in _PRODUCTS)
# Fused attention, and the position of its dropout rate (native_functions.yaml). With dropout it is
# recomputed: a kept one draws no random numbers the second time, so that every later dropout of the
# block would draw another mask than in the forward pass.
_SAVED_ATTENTION = {
    _aten._scaled_dot_product_flash_attention.default: 3,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    _aten._scaled_dot_product_efficient_attention.default: 5,
    _aten._scaled_dot_product_cudnn_attention.default: 5,
}
# Lets the count of saved bytes see the kept products too; newer versions of torch have it.
_HOOKS_OPTION = "respect_saved_tensors_hooks"


def checkpoint_blocks(workload: Workload, recipe: Recipe, blocks: list[nn.Module]) -> None:
    """Let the blocks on this rank recompute in backward what the recipe does not keep."""
    if recipe.checkpointing == "none":
        return
    if workload.blocks is None:
        raise RecipeError(
            f"checkpointing {recipe.checkpointing!r} needs the blocks of workload "
            f"{workload.name!r}, which names none; add blocks=lambda model: [...] with the modules "
            "to recompute to its Workload, or use checkpointing='none'"
        )
    options: dict[str, Any] = {"use_reentrant": False}
    if recipe.checkpointing == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _keeps)
        if _HOOKS_OPTION in inspect.signature(checkpoint).parameters:
            options[_HOOKS_OPTION] = True
    recompute = functools.partial(checkpoint, **options)
    for unit in checkpoint_units(recipe, blocks):
        if len(unit) == 1:
            wrap_forward(unit[0], recompute)
        else:
            run_as_one(unit, recompute)


def checkpoint_units(recipe: Recipe, blocks: list[nn.Module]) -> list[list[nn.Module]]:
    """The runs of blocks that are recomputed together, in order."""
    if len({id(block) for block in blocks}) < len(blocks):
        found = f"blocks names {len(blocks)} modules, and some of them more than once"
        raise WorkloadError(f"{found}; name each module once, in the order of the model's calls")
    # The lengths of segments differ by one at most; all else recomputes block by block.
    if (num_units := recipe.num_segments or len(blocks)) > len(blocks):
        raise RecipeError(
            f"checkpointing {recipe.checkpointing!r} asks for more segments than the "
            f"{len(blocks)} blocks that this rank holds; use segments:{max(len(blocks), 1)} or less"
        )
    bounds = [index * len(blocks) // num_units for index in range(num_units + 1)]
    return [blocks[start:end] for start, end in itertools.pairwise(bounds)]


def units_to_shard(
    recipe: Recipe, model: nn.Module, blocks: list[nn.Module]
) -> list[list[nn.Module]]:
    """The units that FSDP gathers one by one; the other parameters belong to the root."""
    units = checkpoint_units(recipe, blocks) if blocks else []
    return [one for one in units if model not in one and not _shares_weights(one, model)]


def _shares_weights(unit: list[nn.Module], model: nn.Module) -> bool:
    """Whether a weight of the unit is also used outside, and so belongs to the root."""
    inside = {module for block in unit for module in block.modules()}
    others = (module for module in model.modules() if module not in inside)
    outside = {id(weight) for one in others for weight in one.parameters(recurse=False)}
    return any(id(weight) in outside for block in unit for weight in block.parameters())


def _keeps(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    dropout_at = _SAVED_ATTENTION.get(operator)
    # Trailing arguments at their defaults are left out, and dropout is 0 by default.
    without_dropout = dropout_at is not None and (len(args) <= dropout_at or not args[dropout_at])
    if without_dropout or operator in _SAVED_PRODUCTS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
