"""Who runs what is measured: a measurement asks for iterations one by one, and is told of each end.

A measurement is a generator, so that it may wait for a training step inside a user's loop.
"""

import contextlib
from collections.abc import Callable, Generator
from typing import TypeVar, cast

from perfsuite.records.stages import Stage

T = TypeVar("T")

# Yields the `Stage` of each iteration that it wants run before it goes on; returns what it found.
Iterations = Generator[Stage, None, T]


def run_iterations(asked: Iterations[T], iterate: Callable[[Stage], object]) -> T:
    """Return what a measurement finds, calling `iterate` for each iteration that it asks for."""
    with contextlib.closing(asked):
        while True:
            try:
                stage = next(asked)
            except StopIteration as ended:
                return cast(T, ended.value)
            iterate(stage)
