"""Watch for NaN and infinity, which waits for the device: never in what is timed."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from perfsuite.errors import NonFiniteError
from perfsuite.worker.dtensor import local_tensor
from perfsuite.worker.training.trainer import Trainer


def check_finite(trainer: Trainer, losses: Sequence[Tensor], first_step: int) -> None:
    """Check the losses of the steps from `first_step` on, and the parameters after the last."""
    # Gradients only name a culprit: a dynamic loss scale skips steps with infinite ones.
    values = torch.stack(list(losses)).tolist() if losses else []
    for step, value in enumerate(values, start=first_step):
        if not math.isfinite(value):
            culprit = first_non_finite(trainer)
            where = f"the first parameter that is not finite is {culprit}"
            if culprit is None:
                where = "every gradient and parameter on this rank is finite, so it comes from the "
                where += "inputs, the forward pass or the loss itself"
            raise NonFiniteError(f"the loss is {value} at step {step}; {where}; {ADVICE}")
    finite = {n: _finite(p) for n, p in trainer.module.named_parameters() if p.requires_grad}
    # One tensor for all, so that the host waits once.
    are_finite = torch.stack([*finite.values()]).tolist() if finite else []
    if False in are_finite:
        name = [*finite][are_finite.index(False)]
        last_step = first_step + max(len(values), 1) - 1
        found = f"parameter {name!r} is not finite after step {last_step}, although the loss was"
        raise NonFiniteError(f"{found}; {ADVICE}")


def first_non_finite(trainer: Trainer) -> str | None:
    """Return the first parameter with a NaN or infinity, such as "'fc1.weight' (gradient)"."""
    for name, parameter in trainer.module.named_parameters():
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"{name!r} (gradient)"
        if not _finite(parameter):
            return f"{name!r} (value)"
    return None


def gradients_are_finite(trainer: Trainer) -> Tensor:
    """Whether all gradients are finite, of split ones this rank's part; waits for nothing."""
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    local = [local_tensor(p.grad) for p in parameters if p.grad is not None]
    dense = [one.coalesce().values() if one.is_sparse else one for one in local]
    if not (gradients := [gradient for gradient in dense if gradient.numel()]):
        return torch.ones((), dtype=torch.bool, device=trainer.device)
    # The largest magnitude is infinite or NaN where any is, and cannot overflow as a sum might.
    largest = torch._foreach_norm(gradients, float("inf"))
    return torch.stack([norm.float() for norm in largest]).isfinite().all()


ADVICE = "lower the learning rate, clip gradients, or use a precision with more range"


def _finite(tensor: Tensor) -> Tensor:
    return local_tensor(tensor.detach()).isfinite().all()
