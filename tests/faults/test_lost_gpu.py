"""A GPU that falls off the bus before, or while, its session measures."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import pytest

from perfsuite.errors import DeviceError
from perfsuite.experiments import rank_session
from perfsuite.gate.baselines.select import choose_runs
from perfsuite.plugin.session import saving
from perfsuite.ranks.group import run_group
from perfsuite.ranks.messages import CallFunction, GroupPolicy, GroupRequest
from perfsuite.ranks.pickling import pack

LOST = "a GPU does not answer: GPU is lost (NVML); look for Xid in the kernel's log (dmesg)"


def lose(*_: Any) -> NoReturn:
    raise DeviceError(LOST)


def test_gpus_that_this_torch_cannot_use_are_told_by_the_rank(monkeypatch: Any) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # torch sees none, as one built for a CPU does
    policy = GroupPolicy(device="cuda", num_gpus=1)
    job = CallFunction(call=pack((max, (1, 2))))

    with pytest.raises(DeviceError) as raised:
        run_group(GroupRequest(job=job, world_size=1, policy=policy))

    assert re.fullmatch(
        r"NVML shows 1 GPU, and torch \S+ \((no CUDA|CUDA \S+)\) can use none: install a torch "
        r"build with CUDA, or a newer driver, or give --perf-device=cpu",
        str(raised.value),
    )


def test_each_cell_says_that_a_gpu_is_lost_and_other_tests_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_session, "visible_gpus", lose)
    pytester.makepyfile("""
        from perfsuite import Recipe

        def test_cell(train_benchmark):
            train_benchmark("toy-mlp", Recipe())

        def test_other():
            pass
    """)

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    result.assert_outcomes(errors=1, passed=1)
    assert f"DeviceError: {LOST}" in result.outlines
    assert "Traceback" not in result.stdout.str()


def test_what_was_measured_before_is_saved_and_is_no_baseline(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "describe_host", lose)
    monkeypatch.setattr(saving, "probe_host", lambda: {"interpreter": 0.03})
    pytester.makepyfile("def test_sum(benchmark): benchmark.pedantic(sum, args=([1],))")

    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--perf-gate=on", "--benchmark-save=run"
    )

    assert result.ret == 0
    (path,) = pytester.path.glob("baselines/*/0001_run.json")
    assert len(json.loads(path.read_text())["benchmarks"]) == 1
    (refused,) = choose_runs(pytester.path / "baselines", True, "").refused
    assert refused.reason == "does not say in which environment it was made"
