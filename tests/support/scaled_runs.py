"""Cells that were trained over several devices, and that nobody measured."""

from __future__ import annotations

import dataclasses
from statistics import median
from typing import Any

from made_up_runs import cell

from perfsuite.records.parallel import parse_parallel
from perfsuite.report.rows import Row


def trained(
    parallel: str = "single",
    times_s: tuple[float, ...] = (0.1, 0.1),
    *,
    batch_per_device: int = 8,
    name: str = "",
    num_cores: int | None = 16,
    forward_s: float = 0.03,
    backward_s: float = 0.06,
    **fields: Any,
) -> Row:
    """A training cell whose samples per second are those of its batch."""
    size = parse_parallel(parallel).size
    row = cell(
        name or f"t[{parallel}-{batch_per_device}]",
        times_s,
        samples_per_s=batch_per_device * size / median(times_s),
        stages_s={"forward": forward_s, "backward": backward_s},
        parallel=parallel,
        **fields,
    )
    return dataclasses.replace(row, num_cores=num_cores)
