"""The stages of an iteration: the vocabulary between training and measuring.

Training enters `stage("forward")` around the model's call; measuring defines what entering does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

STAGES = ("load", "forward", "backward", "optimizer", "evaluation")


class Stage(Protocol):
    """The argument of an iteration: a name of `STAGES` gives the context manager to work in."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Return the context manager of the stage of this name."""


def untimed(name: str) -> AbstractContextManager[None]:
    """Be the `Stage` that does nothing."""
    return nullcontext()
