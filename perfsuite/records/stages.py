"""The stages of an iteration, and what code that trains tells a measurement.

The vocabulary between training and measuring: training enters `stage("forward")` around the model's
call, and measuring defines what entering does. Users write these names into code of their own,
where they do nothing outside of a measurement, and need nothing but Python.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

STAGES = ("load", "forward", "backward", "optimizer", "evaluation")


# The argument of an iteration: a name of `STAGES` gives the context manager to work in.
Stage = Callable[[str], AbstractContextManager[None]]
_NOTHING = nullcontext()  # may be entered any number of times


def untimed(name: str) -> AbstractContextManager[None]:
    """Be the `Stage` that does nothing."""
    return _NOTHING


@dataclass(frozen=True)
class Step:
    """What `build_step()` may return instead of the function that takes one training step.

    Attributes:
        run: () -> the step's loss, or None.
        model: Its parameters and buffers count as memory from the beginning of the step.
        optimizer: So does its state.
    """

    run: Callable[[], Any]
    model: Any = None
    optimizer: Any = None


class StopLoop(BaseException):  # like StopIteration, it says that all went well
    """Ends a training loop, on every rank, once enough of its steps are measured."""


# Who measures the code that runs now: it has the three functions below as methods.
_listener: Any = None


def stage(name: str) -> AbstractContextManager[None]:
    """Mark a part of a training step: `with perfsuite.stage("load"):`, or another of `STAGES`."""
    return _NOTHING if _listener is None else _listener.stage(name)


def step_done() -> None:
    """Mark the end of a step in a loop where no torch optimizer steps."""
    if _listener is not None:
        _listener.step_done()


def log_loss(loss: Any) -> None:
    """Tell the loss of this step, a number or a tensor, which nothing waits for."""
    if _listener is not None:
        _listener.log_loss(loss)


def listen(listener: Any = None) -> None:
    """Let a listener hear what code tells; None ends that, also in a forked process."""
    global _listener
    _listener = listener


@contextmanager
def listening(listener: Any) -> Iterator[None]:
    """Let the listener hear what the code in the block tells."""
    listen(listener)
    try:
        yield
    finally:
        listen(None)
