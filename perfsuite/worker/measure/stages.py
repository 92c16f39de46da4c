"""Seconds spent in each stage of an iteration, without slowing the iteration down."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.messages import Span
from perfsuite.records.stages import STAGES, untimed
from perfsuite.worker.measure.device import is_accelerator, make_event


class StageClock:
    """A `Stage` that keeps when each stage began and ended, until `collect` takes it.

    A stage may be entered many times. On a GPU all stages but "load" are timed by events on the
    current stream, because the host only queues their work; nothing waits for an event before
    `collect`. On a CPU, and for "load" everywhere, the host's clock is read. Stages do not nest, or
    seconds would count twice. `on_enter` is called with a stage's name before its time starts.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        on_enter: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = time.perf_counter,
        make_event: Callable[[torch.device], torch.Event] = make_event,
    ) -> None:
        self._make_event = partial(make_event, device)
        self._events: list[torch.Event] = []
        self._num_used, self._clock = 0, clock
        self._on_cpu = not is_accelerator(device)
        # Reads the time, as a float or as an event.
        self._mark: Callable[[], Any] = clock if self._on_cpu else self._record_event
        self._on_enter = on_enter
        self._open: str | None = None
        self._passed: list[tuple[str, Any, Any]] = []
        self._began_s = 0.0
        self._borders: list[Any] = []
        marks = dict.fromkeys(STAGES, self._mark) | {"load": clock}
        self._spans = {name: _Span(name, self, mark) for name, mark in marks.items()}

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Return the context manager that times this stage, the same one at every call."""
        try:
            return self._spans[name]
        except KeyError:
            text = f"stage {name!r} is not known; use one of {', '.join(STAGES)}"
            raise PerfsuiteError(text) from None

    def mark_border(self) -> None:
        """Begin a step, or end the last one."""
        if not self._borders:
            self._began_s = self._clock()
        self._borders.append(self._mark())

    def steps_s(self) -> tuple[float, ...]:
        """Return the seconds from border to border, after the device was synchronised."""
        return tuple(_seconds(*borders) for borders in pairwise(self._borders))

    def spans(self) -> tuple[Span, ...]:
        """Return the stages in order, on a CPU with "other" between; the device is synchronised."""
        first, last = self._borders[0], self._borders[-1]
        if not self._on_cpu:
            since = {name: self._began_s if name == "load" else first for name in STAGES}
            return tuple(
                (name, _seconds(since[name], start), _seconds(since[name], end))
                for name, start, end in self._passed
            )
        spans: list[Span] = []
        before_s = 0.0
        for name, start, end in (*self._passed, ("", last, last)):
            spans += [("other", before_s, start - first), (name, start - first, end - first)]
            before_s = end - first
        return tuple(spans[:-1])

    def collect(self) -> dict[str, float]:
        """Return each stage's seconds since the last call, after the device was synchronised."""
        totals: dict[str, float] = {}
        for name, start, end in self._passed:
            totals[name] = totals.get(name, 0.0) + _seconds(start, end)
        self._passed.clear()
        self._borders.clear()
        self._num_used = 0
        return totals

    def _record_event(self) -> torch.Event:
        if self._num_used == len(self._events):
            self._events.append(self._make_event())
        event = self._events[self._num_used]
        event.record()
        self._num_used += 1
        return event


class StageMarks(StageClock):
    """Times steps alone: the events of stages would take longer than a short kernel."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Tell which stage is entered."""
        if name not in self._spans:
            super().__call__(name)  # says so
        self._on_enter(name)
        return untimed(name)


class _Span:
    """One stage; the time is read last on entering and first on leaving."""

    def __init__(self, name: str, owner: StageClock, mark: Callable[[], Any]) -> None:
        self._name, self._owner = name, owner
        self._mark = mark
        self._start: Any = None

    def __enter__(self) -> None:
        owner, name = self._owner, self._name
        if owner._open is not None:
            found = f"stage {name!r} was entered inside of stage {owner._open!r}"
            raise PerfsuiteError(f"{found}; stages do not nest, so leave {owner._open!r} first")
        owner._open = name
        owner._on_enter(name)
        self._start = self._mark()

    def __exit__(self, *exception: object) -> None:
        end = self._mark()
        self._owner._passed.append((self._name, self._start, end))
        self._owner._open = None


def _seconds(start: Any, end: Any) -> float:
    return float(end - start) if isinstance(start, float) else float(start.elapsed_time(end)) / 1e3
