"""float32 master weights, as an optimizer that scaler and clipping see as the only one.

Mixed precision training, Micikevicius et al. 2018, section 3.1. Must not know why the model is in a
low precision, nor which optimizer steps the masters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class MasterWeights(Optimizer):
    """Steps float32 copies of a model's low-precision parameters, then copies them back.

    Its parameter groups are the inner optimizer's, masters in them, so that `GradScaler.unscale_`
    and clipping work on float32 gradients. One step is: backward, `collect_gradients`, unscale,
    clip, `step`. Gradients of several micro-batches are summed in the model's own dtype.

    Attributes:
        inner: The optimizer of the masters, and of the parameters that are in float32 themselves.
    """

    inner: Optimizer

    def __init__(
        self,
        parameters: list[nn.Parameter],
        build_optimizer: Callable[[list[nn.Parameter]], Optimizer],
    ) -> None:
        """Copy the parameters and build the optimizer of the copies.

        Args:
            parameters: The model's, of any floating dtypes.
            build_optimizer: Called with the masters, float32 parameters standing for themselves.
        """
        masters = [
            parameter
            if parameter.dtype == torch.float32
            else nn.Parameter(parameter.detach().float())
            for parameter in parameters
        ]
        self._copied = [
            (parameter, master)
            for parameter, master in zip(parameters, masters, strict=True)
            if parameter is not master
        ]
        self.inner = build_optimizer(masters)
        # The groups are the very same dicts, so a learning rate set on either holds for both.
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.state = self.inner.state

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Give each master its parameter's gradient in float32, before it is unscaled."""
        for parameter, master in self._copied:
            master.grad = None if parameter.grad is None else parameter.grad.float()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # returns no loss
        """Step the masters and round them to the model's parameters."""
        self.inner.step(closure)
        for parameter, master in self._copied:
            parameter.copy_(master)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the masters and of the model."""
        self.inner.zero_grad(set_to_none)
        for parameter, _ in self._copied:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()
