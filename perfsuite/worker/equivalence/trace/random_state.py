"""The state of every generator that a model may draw from, to draw the same numbers again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """The states of the global generators at one moment; `cuda` is None on a CPU."""

    python: Any
    numpy: Any
    torch: Tensor
    cuda: Tensor | None

    def has_moved_from(self, other: RandomState) -> bool:
        """Whether numbers were drawn between the other state and this one."""
        return self.torch_has_moved_from(other) or self.outside_torch(other) is not None

    def torch_has_moved_from(self, other: RandomState) -> bool:
        """Whether torch drew numbers between the other state and this one."""
        return not torch.equal(self.torch, other.torch) or (
            self.cuda is not None
            and other.cuda is not None
            and not torch.equal(self.cuda, other.cuda)
        )

    def outside_torch(self, other: RandomState) -> str | None:
        """The module besides torch that drew numbers between the other state and this one."""
        if self.python != other.python:
            return "random"
        has_moved = self.numpy[2:] != other.numpy[2:] or not numpy.array_equal(
            self.numpy[1], other.numpy[1]
        )
        return "numpy.random" if has_moved else None


def read_random_state(device: torch.device) -> RandomState:
    """Return the present state of all generators."""
    return RandomState(
        random.getstate(),
        numpy.random.get_state(),
        torch.get_rng_state(),
        torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    )


def restore_random_state(state: RandomState, device: torch.device) -> None:
    """Set all generators to a state that was read before."""
    random.setstate(state.python)
    numpy.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)
    if state.cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state.cuda, device)
