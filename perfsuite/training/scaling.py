"""The loss scaler: torch's, with Apex's limit and with one mind over ranks that hold parts.

Must not know the step, nor how parameters were split.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from perfsuite.training.precision import PrecisionPolicy
from perfsuite.training.sharded import local_tensor


class LossScaler(GradScaler):
    """A GradScaler for one precision; it does nothing where the precision does not scale.

    Args:
        policy: The precision.
        device: Where the loss is computed.
        agrees_over_ranks: The ranks hold different gradients, so that one rank's overflow must
            make every rank skip the step. `unscale_` is then a collective.
    """

    def __init__(
        self, policy: PrecisionPolicy, device: torch.device, *, agrees_over_ranks: bool
    ) -> None:
        super().__init__(device.type, enabled=policy.loss_scale == "dynamic")
        self._agrees_over_ranks = agrees_over_ranks
        self._max_scale = policy.max_loss_scale
        self._one = torch.ones((), device=device)
        # A rank that never sees a loss (a pipeline stage before the last) has no scale otherwise.
        self.scale(self._one)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale to what the last step found, up to the precision's limit."""
        super().update(new_scale)
        if self.is_enabled() and self._max_scale is not None:
            # `scale(1)` is the scale as a tensor; `get_scale` would wait for the device.
            super().update(self.scale(self._one).clamp(max=self._max_scale))

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        # Not public, but the one place for it: torch's own ShardedGradScaler overrides it too. That
        # one cannot be used, because it refuses plain gradients beside DTensors, which "tp" has.
        if not self._agrees_over_ranks:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = local_tensor(parameter.grad)
                    by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for gradients in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}
