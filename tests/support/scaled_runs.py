"""Cells that were trained over several devices, and bare reductions, that nobody measured."""

from __future__ import annotations

import dataclasses
from statistics import median
from typing import Any

from made_up_runs import cell

from perfsuite.records.parallel import parse_parallel
from perfsuite.report.rows import Row
from perfsuite.report.scaling.cost_model import RingModel

LINK = RingModel(latency_s=0.001, per_byte_s=1e-9)


def trained(
    parallel: str = "single",
    times_s: tuple[float, ...] = (0.1, 0.1),
    *,
    batch_per_device: int = 8,
    name: str = "",
    num_cores: int | None = 16,
    forward_s: float = 0.03,
    backward_s: float = 0.06,
    num_bytes: int = 1_000_000,
    **fields: Any,
) -> Row:
    """A training cell whose samples per second are those of its batch."""
    size = parse_parallel(parallel).size
    row = cell(
        name or f"t[{parallel}-{batch_per_device}]",
        times_s,
        samples_per_s=batch_per_device * size / median(times_s),
        stages_s={"forward": forward_s, "backward": backward_s},
        counts={"collectives": 0 if parallel == "single" else 1, "collective_bytes": num_bytes},
        parallel=parallel,
        **fields,
    )
    return dataclasses.replace(row, num_cores=num_cores)


def reduced(
    world_size: int,
    num_bytes: int,
    time_s: float | None = None,
    *,
    num_cores: int | None = 16,
    **fields: Any,
) -> Row:
    """A bare all_reduce, which takes what `LINK` says unless told otherwise."""
    if time_s is None:
        time_s = LINK.time_s(world_size, num_bytes)
    row = cell(
        f"all_reduce[{world_size}-{num_bytes}]",
        (time_s, time_s),
        workload="all_reduce",
        samples_per_s=None,
        stages_s={},
        counts={"collectives": 1, "collective_bytes": num_bytes},
        parallel=f"ddp:{world_size}",
        **fields,
    )
    return dataclasses.replace(row, num_cores=num_cores)


def all_reduces(*world_sizes: int, num_cores: int | None = 16) -> list[Row]:
    """Bare reductions of three sizes over some numbers of ranks."""
    return [
        reduced(world_size, num_bytes, num_cores=num_cores)
        for world_size in world_sizes
        for num_bytes in (2**12, 2**20, 2**26)
    ]
