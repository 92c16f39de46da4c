"""What benchmarks of the suite itself need of their machine."""

from __future__ import annotations

import pytest

from perfsuite.system.gpus import visible_gpus


@pytest.fixture
def on_a_cpu(request: pytest.FixtureRequest) -> None:
    """Skip what times the host; `gpu_acceptance.py` asks the same of a GPU."""
    if request.config.getoption("--perf-device") != "cpu" and visible_gpus():
        pytest.skip("it plants and times work of the host: give --perf-device=cpu")
