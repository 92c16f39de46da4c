"""Thousands of screened cells: stored sessions of known noise, judged by the shipped screen.

As slow as the screen itself, which looks for a change of level in each history.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfsuite.gate.baselines.screen import Screened, Screener
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.records.run_file import RunStamp, StoredCell, StoredRun

_POLICY = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0)
_FIRST = datetime(2026, 11, 1, tzinfo=UTC)
_CELL = "cell"
_OTHERS = ("other a", "other b", "other c")
_STAMP = RunStamp(
    fingerprint=None, probe_s=None, num_failed=0, is_pull_request=False, verdicts={}, accepted=()
)


def simulate_screen(
    *, num_stored: int, sd: float, sd_of_others: float, num_sessions: int, seed: int
) -> NDArray[np.bool_]:
    """Return whether each session passed a cell at its limit: sessions vary by `sd`."""
    generator = random.Random(seed)
    passed = []
    for _ in range(num_sessions):
        history = [_stored_run(number, generator, sd, sd_of_others) for number in range(num_stored)]
        screener = Screener(history, None)
        for other in _OTHERS:
            _screen(screener, other, generator.gauss(0.0, sd_of_others))
        at_limit = math.log1p(_POLICY.limit) + generator.gauss(0.0, sd)
        passed.append(_screen(screener, _CELL, at_limit).word is not None)
    return np.array(passed)


def _stored_run(number: int, generator: random.Random, sd: float, sd_of_others: float) -> StoredRun:
    log_times = {_CELL: generator.gauss(0.0, sd)}
    log_times |= {other: generator.gauss(0.0, sd_of_others) for other in _OTHERS}
    return StoredRun(
        path=Path(f"{number:04}_run.json"),
        saved_at=_FIRST + timedelta(days=number),
        commit=None,
        is_dirty=False,
        stamp=_STAMP,
        cells={
            name: StoredCell(median_s=math.exp(log_time)) for name, log_time in log_times.items()
        },
    )


def _screen(screener: Screener, name: str, log_time: float) -> Screened:
    return screener.screen(name, StoredCell(median_s=math.exp(log_time)), None, _POLICY)
