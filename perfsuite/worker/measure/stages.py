"""Seconds spent in each stage of an iteration, without slowing the iteration down."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Event

from perfsuite.errors import PerfsuiteError
from perfsuite.records.stages import STAGES, untimed
from perfsuite.worker.measure.device import is_accelerator, make_event


class StageClock:
    """A `Stage` that adds up the seconds of each stage until `collect` takes them.

    A stage may be entered many times. On a GPU all stages but "load" are timed by events on the
    current stream, because the host only queues their work; nothing waits for an event before
    `collect`. On a CPU, and for "load" everywhere, the host's clock is read. Stages do not nest,
    because the seconds of an inner stage would count twice.

    `on_enter` is called with the name of each stage that is entered, before its time starts.
    `clock` is the host's, in seconds; `make_event` makes an event with timing for a device.
    """

    __slots__ = ("_clock", "_on_enter", "_open", "_spans")

    def __init__(
        self,
        device: torch.device,
        *,
        on_enter: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        make_event: Callable[[torch.device], Event] = make_event,
    ) -> None:
        self._clock = clock
        self._on_enter = on_enter
        self._open: str | None = None
        self._spans: dict[str, _HostSpan | _DeviceSpan] = {
            name: _DeviceSpan(name, self, partial(make_event, device))
            if is_accelerator(device) and name != "load"
            else _HostSpan(name, self)
            for name in STAGES
        }

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Return the context manager that times this stage, the same one at every call."""
        try:
            return self._spans[name]
        except KeyError:
            raise PerfsuiteError(
                f"stage {name!r} is not known; use one of {', '.join(STAGES)}"
            ) from None

    def collect(self) -> dict[str, float]:
        """Return the seconds of each stage that was entered since the last call.

        On a GPU the device must have been synchronised after the last stage.
        """
        totals = {name: span.take_s() for name, span in self._spans.items()}
        return {name: seconds for name, seconds in totals.items() if seconds is not None}

    def _enter(self, name: str) -> None:
        if self._open is not None:
            raise PerfsuiteError(
                f"stage {name!r} was entered inside of stage {self._open!r}; stages do not nest, "
                f"so leave {self._open!r} first"
            )
        self._open = name
        if self._on_enter is not None:
            self._on_enter(name)


class StageMarks:
    """A `Stage` that times nothing: the events of a step would take longer than a short kernel."""

    def __init__(self, on_enter: Callable[[str], None]) -> None:
        self._on_enter = on_enter

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """Tell which stage is entered."""
        self._on_enter(name)
        return untimed(name)

    def collect(self) -> dict[str, float]:
        """Return no seconds of any stage."""
        return {}


class _HostSpan:
    """One stage, timed by the host's clock, which is read last on entering and first on leaving."""

    __slots__ = ("_owner", "_start_s", "_total_s", "_was_entered", "name")

    def __init__(self, name: str, owner: StageClock) -> None:
        self.name = name
        self._owner = owner
        self._start_s = self._total_s = 0.0
        self._was_entered = False

    def __enter__(self) -> None:
        self._owner._enter(self.name)
        self._was_entered = True
        self._start_s = self._owner._clock()

    def __exit__(self, *exception: object) -> None:
        self._total_s += self._owner._clock() - self._start_s
        self._owner._open = None

    def take_s(self) -> float | None:
        total_s = self._total_s if self._was_entered else None
        self._total_s, self._was_entered = 0.0, False
        return total_s


class _DeviceSpan:
    """One stage, timed by pairs of events that are reused after each `take_s`."""

    __slots__ = ("_make_event", "_num_used", "_owner", "_pairs", "name")

    def __init__(self, name: str, owner: StageClock, make_event: Callable[[], Event]) -> None:
        self.name = name
        self._owner = owner
        self._make_event = make_event
        self._pairs: list[tuple[Event, Event]] = []
        self._num_used = 0

    def __enter__(self) -> None:
        self._owner._enter(self.name)
        if self._num_used == len(self._pairs):
            self._pairs.append((self._make_event(), self._make_event()))
        self._pairs[self._num_used][0].record()

    def __exit__(self, *exception: object) -> None:
        self._pairs[self._num_used][1].record()
        self._num_used += 1
        self._owner._open = None

    def take_s(self) -> float | None:
        used, self._num_used = self._pairs[: self._num_used], 0
        return None if not used else sum(start.elapsed_time(end) for start, end in used) / 1e3
