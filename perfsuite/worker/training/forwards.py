"""Give modules another forward, one by one or several as one call; all else stays as it was."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from perfsuite.errors import WorkloadError


def wrap_forward(module: nn.Module, wrapper: Callable[..., Any]) -> None:
    """Let `wrapper(forward, *args, **kwargs)` answer each call; the newest is the outermost."""
    # The module's class is exchanged for a subclass of its own, as FSDP2 does it. A wrapping module
    # would rename the parameters, and a `forward` attribute of the instance would bind every
    # replica that nn.DataParallel copies to the first one's parameters.
    original = type(module)
    if "forward" in vars(module):
        raise WorkloadError(
            f"a {original.__name__} of the model has a forward set on the instance, which "
            "precision and checkpointing cannot wrap; define forward in the class"
        )

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original.forward, self), *args, **kwargs)

    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    module.__class__ = type(original.__name__, (original,), names | {"forward": forward})


def run_as_one(blocks: list[nn.Module], call: Callable[..., Any]) -> None:
    """Let `call(function, activations)` run all blocks of a chain, in place of each one's forward.

    Every block but the last only notes its call. A model that is no such chain is refused.
    """
    for block in blocks[:-1]:
        wrap_forward(block, _defer)
    wrap_forward(blocks[-1], functools.partial(_run_deferred, call))


class _Deferred:
    """What a block before the last returns, which a model may only hand to the next block."""

    def __init__(self, first: Any, calls: tuple[Callable[[Any], Any], ...]) -> None:
        self.first, self.calls = first, calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python looks for a protocol, not for a value
            raise AttributeError(name)
        raise _not_a_chain(f"reads {name!r} of")

    def __getitem__(self, index: Any) -> Any:
        raise _not_a_chain("takes a part of")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _not_a_chain(f"calls {getattr(func, '__name__', func)!r} on")


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
