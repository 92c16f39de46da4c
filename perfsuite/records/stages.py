"""The stages of an iteration: the words in which training and measuring speak with each other.

Who trains enters `stage("forward")` around the model's call; who measures says what entering does.
Neither knows the other.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

STAGES = ("load", "forward", "backward", "optimizer", "evaluation")


class Stage(Protocol):
    """What an iteration is handed: a name of `STAGES` gives the context manager to work in."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Return the context manager of the stage of this name."""


def untimed(name: str) -> AbstractContextManager[None]:
    """Be the `Stage` that does nothing."""
    return nullcontext()
