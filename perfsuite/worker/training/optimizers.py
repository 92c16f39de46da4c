"""What a user's optimizer shows of itself."""

import functools
import inspect
from typing import Any

import torch
from torch.optim import Optimizer

# What torch runs around a step of an optimizer, and around that of its base class.
_AROUND_STEP = Optimizer.profile_hook_step(print).__code__


def device_of(optimizer: Any) -> torch.device:
    """Return the device of an optimizer's first CUDA parameter, else the one in use now."""
    groups = getattr(optimizer, "param_groups", ())
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    now = f"cuda:{torch.cuda.current_device()}" if is_used else "cpu"
    trained = (one.device for group in groups for one in group["params"] if one.is_cuda)
    return torch.device(next(trained, now))


def is_within_another(optimizer: Optimizer) -> bool:
    """Return whether a step that ends now is a part of another of its optimizer: super().step()."""
    kind: Any = type(optimizer)
    # Frames take long to look at, within the step.
    num_steps, frame = 0, inspect.currentframe() if _has_more_steps(kind) else None
    while frame is not None:
        num_steps += frame.f_code is _AROUND_STEP and frame.f_locals["self"] is optimizer
        frame = frame.f_back
    return num_steps > 1


@functools.cache
def _has_more_steps(kind: type[Optimizer]) -> bool:
    """Whether there is a step beside those of the class and of `Optimizer`."""
    return sum("step" in vars(one) for one in kind.__mro__) > 2
