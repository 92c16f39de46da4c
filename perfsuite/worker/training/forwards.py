"""Give one module another forward, and leave everything else about it as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from perfsuite.errors import WorkloadError


class ForwardWrapper(Protocol):
    """What runs in place of a forward, and gets that forward, bound to its module."""

    def __call__(self, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The answer to one call of the module."""


def wrap_forward(module: nn.Module, wrapper: ForwardWrapper) -> None:
    """Let `wrapper(forward, *args, **kwargs)` answer each call of the module, in place.

    The module's class is exchanged for a subclass of its own, as FSDP2 does it: its attributes, its
    hooks, its name and the names of its parameters stay. A wrapping module would rename the
    parameters, and a `forward` attribute of the instance would bind every replica that
    nn.DataParallel copies to the first one's parameters. Here each replica's own forward is passed
    on. Where a module is wrapped again, the newer wrapper is the outer one.

    Raises:
        WorkloadError: The module has a `forward` of its own that its class does not have.
    """
    original = type(module)
    if "forward" in vars(module):
        raise WorkloadError(
            f"a {original.__name__} of the model has a forward set on the instance, which "
            "precision and checkpointing cannot wrap; define forward in the class"
        )

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original.forward, self), *args, **kwargs)

    names = {
        "forward": forward,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    module.__class__ = type(original.__name__, (original,), names)
