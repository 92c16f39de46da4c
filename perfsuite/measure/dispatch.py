"""What the counting and the memory measurement share: seeing every operator of an iteration.

Must not know what is done with an operator that was seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# torch documents TorchDispatchMode under this path although the module has an underscore.
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from perfsuite.measure.collectives import settle


class StepMode(TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """Sees every operator that runs in its `with` block, on plain tensors, except in loading.

    - A tensor subclass such as DTensor goes first: what is seen are the operators, collectives
      included, on the local tensors that it turns into.
    - Loading is left out because it would be seen only where no worker process does it.
    - Operators of the calling thread and of autograd's threads are seen, those of other threads
      are not. So collectives are waited for at once, and the rest of a DDP communication hook
      runs here and not on a thread of gloo's.
    - A compiled model runs as if it were not: torch.compile stands back from a dispatch mode.
    """

    # Without this, torch refuses to run flex_attention and other operators that take functions.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_loading = False

    @abstractmethod
    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `self.run(func, args, kwargs)`; every tensor in the arguments is a plain one."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the operator's result; a collective has ended by then."""
        result = func(*args, **kwargs)
        settle(func, result)
        return result

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Work in a stage; the iteration is handed this method."""
        self._is_loading = name == "load"
        try:
            yield
        finally:
            self._is_loading = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if self._is_loading:
            return func(*args, **(kwargs or {}))
        return self.observe(func, args, kwargs or {})
