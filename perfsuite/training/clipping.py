"""Clip the norm of all gradients together, wherever their parts live.

Must not know which mode split the parameters.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from perfsuite.training.sharded import local_tensor

# torch.nn.utils.clip_grad_norm_ divides by the norm plus this.
_EPSILON = 1e-6


@torch.no_grad()
def clip_grad_norm(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    *,
    differ_between_ranks: bool,
    device: torch.device,
) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`; return the norm before.

    The same formula as torch.nn.utils.clip_grad_norm_, for gradients of three kinds: plain and
    equal on all ranks; DTensors, with plain ones beside them that are equal on all ranks (fsdp,
    tp); plain ones that only this rank has (pp, mp). For the latter two it is a collective. Does
    not wait for the device.

    Args:
        parameters: All that the optimizer of this rank steps.
        max_norm: Greatest L2 norm.
        differ_between_ranks: The parameters are of one of the latter two kinds.
        device: Of the returned norm, a scalar.
    """
    parameters = list(parameters)
    if not differ_between_ranks:
        return clip_grad_norm_(parameters, max_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = _norm_over_ranks(gradients, device)
    scale = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
    for gradient in gradients:
        local_tensor(gradient).mul_(scale)
    return norm


def _norm_over_ranks(gradients: list[Tensor], device: torch.device) -> Tensor:
    sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    plain = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    square = _square(get_total_norm(plain), device)
    if sharded:
        square += _square(get_total_norm(sharded), device)
    else:
        dist.all_reduce(square)
    return square.sqrt()


def _square(norm: Tensor, device: torch.device) -> Tensor:
    # float64, in which no float16 norm overflows, and which a rank without gradients has too.
    full = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return full.to(device, torch.float64).square()
