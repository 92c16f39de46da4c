"""The sum over ranks at growing sizes, with the bandwidth that it reaches.

Below 1 MiB it is the time that PyTorch takes to launch a collective.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from perfsuite.system.gpus import visible_gpus

in_default = pytest.mark.perf(matrix="default")
in_full = pytest.mark.perf(matrix="full")

NUM_GPUS = len(visible_gpus())
OF_TWO = {0, 1, 2}
KIB = 1024
MIB = 1024 * KIB


@pytest.mark.parametrize(
    "message_bytes",
    [
        pytest.param(4 * KIB, marks=in_full, id="4KiB"),
        pytest.param(256 * KIB, marks=in_full, id="256KiB"),
        pytest.param(1 * MIB, marks=in_default, id="1MiB"),
        pytest.param(16 * MIB, marks=in_full, id="16MiB"),
        pytest.param(64 * MIB, marks=in_full, id="64MiB"),
        # Only links of GPUs are not at their peak yet.
        pytest.param(256 * MIB, marks=in_full, id="256MiB"),
        pytest.param(1024 * MIB, marks=in_full, id="1GiB"),
    ],
)
@pytest.mark.parametrize(
    "world_size",
    [2, *(pytest.param(size, marks=in_full) for size in sorted({4, NUM_GPUS} - OF_TWO))],
)
def test_all_reduce(
    all_reduce_benchmark: Any, benchmark: Any, world_size: int, message_bytes: int
) -> None:
    if message_bytes > 64 * MIB and not NUM_GPUS:
        pytest.skip("processors are at their peak from 64 MiB on")
    outcome = all_reduce_benchmark(f"ddp:{world_size}", message_bytes)

    # Each byte crosses the slowest link 2 (n - 1) / n times (nccl-tests, doc/PERFORMANCE.md).
    bandwidth = message_bytes / statistics.median(outcome.step_times_s)
    benchmark.extra_info["bandwidth_bytes_per_s"] = bandwidth
    bus_bandwidth = bandwidth * 2 * (world_size - 1) / world_size
    benchmark.extra_info["bus_bandwidth_bytes_per_s"] = bus_bandwidth
    assert outcome.record.counts.collectives == 1
    assert outcome.record.counts.collective_bytes == message_bytes
