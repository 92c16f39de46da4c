"""Several blocks of a chain run as one call, though the model calls them one by one.

Every block but the last only notes its call; the last one makes them all. So "segments:C" works on
any chain, and any other model is refused instead of computed wrongly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from perfsuite.errors import WorkloadError
from perfsuite.worker.training.forwards import wrap_forward


def run_as_one(blocks: list[nn.Module], call: Callable[..., Any]) -> None:
    """Let `call(function, activations)` run all of the blocks, in place of each one's forward."""
    for block in blocks[:-1]:
        wrap_forward(block, _defer)
    wrap_forward(blocks[-1], functools.partial(_run_deferred, call))


class _Deferred:
    """What a block before the last returns: the calls that the last one will make.

    A model may only hand it to the next block; anything else is an error.
    """

    def __init__(self, first: Any, calls: tuple[Callable[[Any], Any], ...]) -> None:
        self.first = first
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python looks for a protocol, not for a value
            raise AttributeError(name)
        raise _not_a_chain(f"reads {name!r} of")

    def __getitem__(self, index: Any) -> Any:
        raise _not_a_chain("takes a part of")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise _not_a_chain(f"calls {getattr(function, '__name__', function)!r} on")


def _not_a_chain(use: str) -> WorkloadError:
    return WorkloadError(
        f"checkpointing by segments needs blocks that hand one tensor to each other, and the model "
        f"{use} what a block returned before the next block has it; "
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
    run_all: Callable[..., Any], forward: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    deferred = _defer(forward, *args, **kwargs)

    def run(activations: Any) -> Any:
        for call in deferred.calls:
            activations = call(activations)
        return activations

    return run_all(run, deferred.first)
