"""Every parallel mode on one workload; DDP also at one rank and with its own options."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import Recipe

in_default = pytest.mark.perf(matrix="default")
in_full = pytest.mark.perf(matrix="full")


@pytest.mark.parametrize(
    "parallel",
    [
        "fsdp:2",
        pytest.param("dp:2", marks=in_default),
        pytest.param("horovod-like:2", marks=in_default),
        pytest.param("ddp:1", marks=in_full),
        pytest.param("ddp:4", marks=in_full),
        pytest.param("hsdp:2x2", marks=in_full),
        pytest.param("zero1:2", marks=in_full),
        pytest.param("tp:2", marks=in_full),
        pytest.param("pp:2:gpipe", marks=in_full),
        pytest.param("pp:2:1f1b", marks=in_full),
        pytest.param("pp:2:interleaved", marks=in_full),
        pytest.param("mp:2", marks=in_full),
        pytest.param("horovod:2", marks=in_full),
    ],
)
def test_mode(train_benchmark: Any, parallel: str) -> None:
    outcome = train_benchmark("transformer-tiny", Recipe(parallel=parallel))

    assert outcome.losses_are_finite


@in_full
@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0.1},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"comm_hook": "fp16"},
        {"comm_hook": "bf16"},
        {"comm_hook": "powersgd"},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
def test_ddp_option(train_benchmark: Any, options: dict[str, Any]) -> None:
    outcome = train_benchmark("transformer-tiny", Recipe(parallel="ddp:2", **options))

    assert outcome.losses_are_finite
