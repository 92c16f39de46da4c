"""Activation checkpointing of a model's blocks: what is kept for backward, and what recomputed.

Sublinear memory cost, Chen et al. 2016. Must not know the precision or the parallel mode: it wraps
the blocks that live on this rank.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
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
from perfsuite.worker.training.forwards import wrap_forward

_aten = torch.ops.aten

# What "selective" keeps: the products, whose time is cubic in sizes where their outputs are square.
_SAVED_PRODUCTS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
    }
)
# Fused attention, and at which argument it takes its dropout rate (native_functions.yaml). With
# dropout it is recomputed: a kept one draws no random numbers the second time, so that every later
# dropout of the block would draw another mask than in the forward pass.
_SAVED_ATTENTION = {
    _aten._scaled_dot_product_flash_attention.default: 3,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    _aten._scaled_dot_product_efficient_attention.default: 5,
    _aten._scaled_dot_product_cudnn_attention.default: 5,
}
# Lets whoever counts saved bytes see the kept products too; newer versions of torch have it.
_HOOKS_OPTION = "respect_saved_tensors_hooks"


def checkpoint_blocks(workload: Workload, recipe: Recipe, blocks: list[nn.Module]) -> None:
    """Let the blocks recompute in backward what the recipe does not keep, in place.

    Args:
        workload: Whose model it is.
        recipe: Its `checkpointing` says what is recomputed together.
        blocks: The workload's blocks on this rank, in order. "segments:C" are C runs of these.

    Raises:
        RecipeError: The workload names no blocks, or fewer than segments are asked for.
        WorkloadError: A block is named twice, or has a forward that cannot be wrapped.
    """
    if recipe.checkpointing == "none":
        return
    if workload.blocks is None:
        raise RecipeError(
            f"checkpointing {recipe.checkpointing!r} needs the blocks of workload "
            f"{workload.name!r}, which names none; add blocks=lambda model: [...] with the modules "
            "to recompute to its Workload, or use checkpointing='none'"
        )
    context = _keep_products if recipe.checkpointing == "selective" else None
    for unit in checkpoint_units(recipe, blocks):
        _checkpoint_unit(unit, context)


def checkpoint_units(recipe: Recipe, blocks: list[nn.Module]) -> list[list[nn.Module]]:
    """The runs of blocks that are recomputed together, in order; FSDP shards by the same.

    "segments:C" gives C runs whose lengths differ by one at most, everything else one per block.

    Raises:
        RecipeError: There are more segments than blocks.
        WorkloadError: A block is named twice.
    """
    if len({id(block) for block in blocks}) < len(blocks):
        raise WorkloadError(
            f"blocks names {len(blocks)} modules, and some of them more than once; "
            "name each module once, in the order in which the model calls them"
        )
    num_units = recipe.num_segments or len(blocks)
    if num_units > len(blocks):
        raise RecipeError(
            f"checkpointing {recipe.checkpointing!r} asks for more segments than the "
            f"{len(blocks)} blocks that this rank holds; use segments:{max(len(blocks), 1)} or less"
        )
    bounds = [index * len(blocks) // num_units for index in range(num_units + 1)]
    return [blocks[start:end] for start, end in itertools.pairwise(bounds)]


def _checkpoint_unit(unit: list[nn.Module], context: Callable[[], Any] | None) -> None:
    options: dict[str, Any] = {"use_reentrant": False}
    if context is not None:
        options["context_fn"] = context
        if _HOOKS_OPTION in inspect.signature(checkpoint).parameters:
            options[_HOOKS_OPTION] = True
    recompute = functools.partial(checkpoint, **options)
    if len(unit) == 1:
        wrap_forward(unit[0], recompute)
        return
    for block in unit[:-1]:
        wrap_forward(block, _defer)
    wrap_forward(unit[-1], functools.partial(_run_deferred, recompute))


def _keep_products() -> Any:
    return create_selective_checkpoint_contexts(_keeps)  # type: ignore[no-untyped-call]


def _keeps(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    dropout_at = _SAVED_ATTENTION.get(operator)
    # Trailing arguments at their defaults are left out, and dropout is 0 by default.
    without_dropout = dropout_at is not None and (len(args) <= dropout_at or not args[dropout_at])
    if without_dropout or operator in _SAVED_PRODUCTS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


class _Deferred:
    """What a block of a segment returns before the last: the calls that the last one will make.

    Whatever a model does with it but hand it to the next block is an error, so a model whose blocks
    are no chain cannot be computed wrongly.
    """

    def __init__(self, first: Any, calls: tuple[Callable[[Any], Any], ...]) -> None:
        self.first = first
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # somebody asks for a protocol, not for what is in it
            raise AttributeError(name)
        raise _not_a_chain(f"reads {name!r} of")

    def __getitem__(self, index: Any) -> Any:
        raise _not_a_chain("takes a part of")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise _not_a_chain(f"calls {getattr(function, '__name__', function)!r} on")


def _not_a_chain(deed: str) -> WorkloadError:
    return WorkloadError(
        f"checkpointing by segments needs blocks that hand one tensor to each other, and the model "
        f"{deed} what a block returned before the next block has it; "
        "use checkpointing='every-block', or name blocks that follow directly on each other"
    )


def _defer(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> _Deferred:
    if not args:
        raise WorkloadError(
            "checkpointing by segments needs blocks whose first argument is positional, and a "
            f"block was called with {', '.join(kwargs) or 'nothing'}; "
            "call it as block(activations, ...), or use checkpointing='every-block'"
        )
    first, *others = args

    def call(activations: Any) -> Any:
        return forward(activations, *others, **kwargs)

    if isinstance(first, _Deferred):
        return _Deferred(first.first, (*first.calls, call))
    return _Deferred(first, (call,))


def _run_deferred(
    recompute: Callable[..., Any], forward: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    deferred = _defer(forward, *args, **kwargs)

    def run(activations: Any) -> Any:
        for call in deferred.calls:
            activations = call(activations)
        return activations

    return recompute(run, deferred.first)
