"""What a session asks of a rank beside its cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy


def test_the_gpu_is_probed_on_one_rank_and_a_cpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(GroupPolicy(device="cpu", seed=0), say=lambda text: None)
    called: list[Any] = []

    def run_function(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        called.append((num_ranks, function.__name__, args))
        return [{"GPU matmul": 0.2}]

    monkeypatch.setattr(session, "run_function", run_function)

    assert (session.probe_device(), called) == ({}, [])
    launcher = session._launcher
    launcher.hardware = launcher.hardware._replace(device="cuda", num_gpus=2)
    assert session.probe_device() == {"GPU matmul": 0.2}
    probe = "perfsuite.worker.measure.device:probe_device"
    assert called == [(1, "call_by_name", (probe, "cuda"))]
