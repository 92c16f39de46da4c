"""Operators of profiled iterations: which are kept, and how much communication is hidden."""

from __future__ import annotations

import cProfile
import json
import sys
import tempfile
import time
from _lsprof import Profiler
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch._C._autograd import DeviceType

from perfsuite.records.cell import Operator
from perfsuite.records.profile import Communication
from perfsuite.worker.measure import operators
from perfsuite.worker.measure.iterations import run_iterations
from perfsuite.worker.measure.operators import (
    costliest_operators,
    describe_memory,
    describe_operators,
    measure_communication,
    profile_functions,
    profile_iterations,
    read_trace,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def multiply(stage):
    with stage("forward"):
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))


def average(key, *, calls=1, cpu_us=0.0, device_us=0.0, device_type=DeviceType.CPU):
    return SimpleNamespace(
        key=key,
        count=calls,
        self_cpu_time_total=cpu_us,
        self_device_time_total=device_us,
        device_type=device_type,
    )


def event(name, start, end, *, device_type=DeviceType.CPU, is_async=False, is_annotation=False):
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=device_type,
        is_async=is_async,
        is_user_annotation=is_annotation,
    )


def test_each_operator_of_all_profiled_iterations_is_counted():
    profiler = run_iterations(profile_iterations(CPU, num_iterations=3), multiply)

    operators = {one.name: one for one in costliest_operators(profiler.key_averages(), CPU)}

    assert operators["aten::mm"].calls == 3
    assert operators["aten::mm"].self_s > 0
    assert not any(name.startswith("stage: ") for name in operators)


def profiled_by_name(iterate):
    return {one.name: one for one in run_iterations(profile_functions(), lambda _: iterate())}


def test_a_function_has_its_own_time_and_that_of_what_it_calls_in_c():
    def rest():
        time.sleep(0.02)
        count()

    def count():
        for number in range(100_000):
            number % 7

    def iterate():
        rest()
        rest()

    functions = profiled_by_name(iterate)

    here = f"test_operators.py:{iterate.__qualname__.removesuffix('iterate')}"
    assert functions[f"{here}rest"].calls == functions[f"{here}count"].calls == 2
    assert functions[f"{here}rest"].self_s > 0.04 > functions[f"{here}iterate"].self_s
    assert not any("sleep" in name for name in functions)
    assert sorted(functions.values(), key=lambda one: -one.self_s) == [*functions.values()]


def test_what_the_trainings_own_frame_calls_in_c_is_there_by_itself():
    asked = profile_functions()
    next(asked)
    time.sleep(0.01)
    with pytest.raises(StopIteration) as ended:
        next(asked)

    functions = {one.name: one.self_s for one in ended.value.value}
    assert functions["<built-in method time.sleep>"] > 0.01


def test_where_the_code_has_a_profiler_no_function_is_known(monkeypatch):
    class Second(Profiler):  # as all are from Python 3.12 on, where one is active
        def enable(self):
            raise ValueError("Another profiling tool is already active")

    taken = []
    iterate = partial(taken.append, 1)
    with monkeypatch.context() as patch:
        patch.setattr(operators, "Profiler", Second)
        assert profiled_by_name(iterate) == {}
    with cProfile.Profile() as own:
        assert profiled_by_name(iterate) == {}
        assert sys.getprofile() is own

    assert taken == [1, 1]  # like that of the other ranks


def test_the_profiler_says_nothing_on_standard_error(capfd):
    run_iterations(profile_iterations(CPU, num_iterations=1, with_memory=True), multiply)

    assert capfd.readouterr().err == ""


def test_the_trace_holds_the_stages_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    profiler = run_iterations(profile_iterations(CPU, num_iterations=1), multiply)

    trace = json.loads(read_trace(profiler))

    assert {"stage: forward", "aten::mm"} <= {one.get("name") for one in trace["traceEvents"]}
    assert list(tmp_path.iterdir()) == []


def test_the_tables_are_those_of_the_profiler():
    profiler = run_iterations(profile_iterations(CPU, num_iterations=1, with_memory=True), multiply)
    averages = profiler.key_averages()

    assert "aten::mm" in describe_operators(averages, CPU)
    assert "aten::mm" in (by_memory := describe_memory(averages, CPU))
    assert "CPU Mem" in by_memory


def test_the_ten_costliest_are_in_order_and_those_without_time_of_their_own_are_left_out():
    averages = [average(f"aten::op{number}", cpu_us=number) for number in range(12)]

    operators = costliest_operators(averages, CPU)

    assert [one.name for one in operators] == [f"aten::op{number}" for number in range(11, 1, -1)]
    assert operators[0] == Operator(name="aten::op11", calls=1, self_s=11e-6)


def test_on_a_gpu_the_time_is_the_kernels_and_their_own_rows_are_left_out():
    averages = [
        average("aten::mm", calls=2, cpu_us=5.0, device_us=70.0),
        average("sgemm_kernel", device_us=70.0, device_type=DeviceType.CUDA),
    ]

    assert costliest_operators(averages, CUDA) == (
        Operator(name="aten::mm", calls=2, self_s=70e-6),
    )


def test_on_a_cpu_background_work_is_exposed_where_no_operator_runs():
    events = [
        event("gloo:all_reduce", 0, 4e6, is_async=True),
        event("gloo:all_reduce", 3e6, 6e6, is_async=True),
        event("c10d::allreduce_", 0, 1e6),
        event("aten::mm", 1e6, 3e6),
        event("aten::mul", 5e6, 9e6),
    ]

    assert measure_communication(events, CPU) == Communication(
        total_s=6.0, exposed_s=3.0, overlapped_s=3.0
    )


def test_on_a_gpu_kernels_of_nccl_are_compared_with_all_other_kernels():
    events = [
        event("ncclDevKernel_AllReduce_Sum_f32", 0, 4e6, device_type=DeviceType.CUDA),
        event("nccl:all_reduce", 0, 9e6, device_type=DeviceType.CPU, is_async=True),
        event("nccl:all_reduce", 0, 9e6, device_type=DeviceType.CUDA, is_annotation=True),
        event("sgemm_kernel", 1e6, 2e6, device_type=DeviceType.CUDA),
        event("stage: backward", 0, 9e6, device_type=DeviceType.CUDA, is_annotation=True),
        event("aten::mm", 0, 9e6),
    ]

    assert measure_communication(events, CUDA) == Communication(
        total_s=4.0, exposed_s=3.0, overlapped_s=1.0
    )


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_without_a_collective_there_is_no_communication(device):
    assert measure_communication([event("aten::mm", 0, 1)], device) is None


@pytest.mark.parametrize(
    ("device", "column"), [(CPU, "self_cpu_time_total"), (CUDA, "self_device_time_total")]
)
def test_the_table_is_sorted_by_the_time_of_the_device(device, column):
    averages = SimpleNamespace(table=lambda *, sort_by, row_limit: f"{sort_by}, {row_limit} rows")

    assert describe_operators(averages, device) == f"{column}, 40 rows"


def test_the_memory_of_a_gpu_is_its_allocators(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_summary", lambda device: f"summary of {device}")

    assert describe_memory(SimpleNamespace(), CUDA) == "summary of cuda"
