from __future__ import annotations

import os
import sys

import pytest
import torch

from perfsuite.system.gpus import GpuFacts
from perfsuite.worker.measure import environment
from perfsuite.worker.measure.environment import describe_environment


@pytest.fixture
def two_gpus(monkeypatch):
    h200 = GpuFacts(
        name="NVIDIA H200",
        uuid="GPU-1",
        memory_bytes=139 * 2**30,
        compute_capability=(9, 0),
        power_limit_w=700.0,
        is_mig=False,
    )
    t4 = GpuFacts(
        name="Tesla T4",
        uuid="GPU-2",
        memory_bytes=15 * 2**30,
        compute_capability=(7, 5),
        power_limit_w=None,
        is_mig=None,
    )
    monkeypatch.setattr(environment, "visible_gpus", lambda environ: [h200, t4])
    monkeypatch.setattr(environment, "driver_version", lambda: "580.65")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))


def test_packages_of_cuda_that_can_be_replaced_are_named_with_their_versions(two_gpus, monkeypatch):
    installed = {"nvidia-cublas": "13.1.0.3", "triton": "3.6.0"}
    monkeypatch.setattr(environment, "installed_version", installed.get)

    on_cuda, on_cpu = (describe_environment(device, {}).knobs for device in ("cuda", "cpu"))

    assert on_cuda.items() >= installed.items()
    assert "nvidia-cublas-cu12" not in on_cuda
    assert not on_cpu.keys() & installed.keys()


def test_on_a_cpu_nothing_of_cuda_is_in_the_environment(two_gpus):
    found = describe_environment("cpu", {})

    assert (found.accelerators, found.driver, found.cuda, found.cudnn, found.nccl) == (
        (),
        None,
        None,
        None,
        None,
    )
    assert not [name for name in found.knobs if name.startswith("cud")]


def test_on_cuda_the_gpus_and_the_libraries_are_named(two_gpus):
    found = describe_environment("cuda", {})

    assert found.accelerators == (
        "NVIDIA H200, 139 GiB, 700 W, MIG off",
        "Tesla T4, 15.0 GiB, no power limit, no MIG",
    )
    assert (found.driver, found.cuda, found.cudnn, found.nccl) == (
        "580.65",
        "13.2",
        "92600",
        "2.30.7",
    )
    assert found.knobs["cuda.matmul.fp32_precision"] == (torch.backends.cuda.matmul.fp32_precision)
    assert found.knobs["cudnn.benchmark"] == "False"


def test_without_nccl_its_version_is_none(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)

    assert describe_environment("cuda", {}).nccl is None


def test_the_cores_are_the_machines_and_not_those_this_process_is_pinned_to():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        pinned = describe_environment("cpu", {})
    finally:
        os.sched_setaffinity(0, allowed)

    assert pinned.num_cores == os.cpu_count()


def test_the_build_and_the_interpreter_are_named():
    found = describe_environment("cpu", {})

    assert found.torch == f"{torch.__version__} ({torch.version.git_version[:10]})"
    assert found.python == "{}.{}".format(*sys.version_info)


def test_only_variables_that_change_speed_are_knobs():
    speed = {
        "OMP_NUM_THREADS": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "",
        "NCCL_ALGO": "Ring",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MKL_NUM_THREADS": "2",
    }
    others = {"HOME": "/root", "PYTORCH_VERSION": "1", "OMP_NUM_THREADS_NOT": "1"}

    knobs = describe_environment("cpu", speed | others).knobs

    assert {name: knobs.get(name) for name in speed | others} == speed | dict.fromkeys(others)


def test_a_changed_number_of_threads_changes_the_fingerprint():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = describe_environment("cpu", {})
        torch.set_num_threads(2)
        two = describe_environment("cpu", {})
    finally:
        torch.set_num_threads(before)

    assert (one.knobs["num_threads"], two.knobs["num_threads"]) == ("1", "2")
    assert one.fingerprint != two.fingerprint
