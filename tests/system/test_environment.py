"""The environment of a whole session, found without torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfsuite.system import environment
from perfsuite.system.environment import (
    Environment,
    cpu_model,
    describe_host,
    difference,
    speed_variables,
)
from perfsuite.system.gpus import GpuFacts

A100 = GpuFacts(
    name="NVIDIA A100",
    uuid="GPU-1",
    memory_bytes=40 * 2**30,
    compute_capability=(8, 0),
    power_limit_w=400.0,
    is_mig=True,
)


def test_a_host_names_what_a_session_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "visible_gpus", lambda environ: [A100])
    monkeypatch.setattr(environment, "driver_version", lambda: "580.65")

    found = describe_host({"OMP_NUM_THREADS": "2", "HOME": "/root"}, 4)

    assert found.accelerators == ("NVIDIA A100, 40.0 GiB, 400 W, MIG on",)
    assert found.driver == "580.65"
    assert found.num_cores == 4
    assert found.python == "{}.{}".format(*sys.version_info)
    assert found.torch == version("torch")
    assert found.knobs == {"numpy": version("numpy"), "OMP_NUM_THREADS": "2"}


def test_clocks_that_somebody_has_set_make_another_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = A100._replace(clock_mhz=900, has_ecc=True, pcie=(4, 16), num_nvlinks=12, vbios="92.00")
    monkeypatch.setattr(environment, "visible_gpus", lambda environ: [slow])

    found = describe_host({}, 4).accelerators

    assert found == (
        "NVIDIA A100, 40.0 GiB, 400 W, MIG on, ECC on, PCIe 4 x16, 12 NVLinks, VBIOS 92.00, "
        "clocks set to 900 MHz",
    )


def test_a_package_that_is_not_installed_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "installed_version", lambda _: None)

    found = describe_host({}, 1)

    assert (found.torch, found.knobs) == ("not installed", {"numpy": "not installed"})


@pytest.mark.parametrize(
    ("environ", "num_cores", "is_same"),
    [
        ({}, 2, True),
        ({"HOME": "/elsewhere"}, 2, True),
        ({"KMP_INIT_AT_FORK": "FALSE", "KMP_DUPLICATE_LIB_OK": "True"}, 2, True),
        ({"GLOO_SOCKET_IFNAME": "lo"}, 2, True),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, 2, False),
        ({"OMP_NUM_THREADS": "1"}, 2, False),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, 2, True),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, 2, False),
        ({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/tmp/a", "TRITON_CACHE_DIR": "/tmp/b"}, 2, True),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, 2, False),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, 2, False),
        ({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, 2, False),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, 2, False),
        ({}, 4, False),
    ],
)
def test_the_fingerprint_changes_with_what_changes_a_speed(
    environ: dict[str, str], num_cores: int, is_same: bool
) -> None:
    here = describe_host({}, 2).fingerprint

    assert (describe_host(environ, num_cores).fingerprint == here) is is_same


def changed(**fields: Any) -> Environment:
    return msgspec.structs.replace(describe_host({}, 2), **fields)


def test_two_environments_differ_by_the_fields_that_do() -> None:
    here = changed(driver="570", accelerators=("H100",), knobs={"NCCL_ALGO": "Ring"})
    there = changed(driver="580", accelerators=("H100", "H100"), knobs={})

    assert difference(here, here) == ""
    assert difference(here, there) == "driver 570 -> 580, num_gpus 1 -> 2, NCCL_ALGO Ring -> none"


def test_libraries_have_the_names_that_their_makers_give_them() -> None:
    here = changed(cuda="12.8", cudnn=None, nccl="2.28", python="3.11", num_cores=2)
    there = changed(cuda="13.0", cudnn="91002", nccl="2.30", python="3.12", num_cores=4)

    assert difference(here, there) == (
        "CUDA 12.8 -> 13.0, cuDNN none -> 91002, NCCL 2.28 -> 2.30, num_cores 2 -> 4, "
        "Python 3.11 -> 3.12"
    )


def test_of_a_gpu_only_what_differs_is_told() -> None:
    here = changed(accelerators=("A100, 40.0 GiB, 400 W, MIG off",) * 8)
    there = changed(accelerators=("A100, 40.0 GiB, 250 W, MIG on",) * 8)
    without = changed(accelerators=())

    assert difference(here, there) == "GPU 400 W and MIG off -> 250 W and MIG on"
    assert difference(without, here) == (
        "num_gpus none -> 8, GPU none -> A100 and 40.0 GiB and 400 W and MIG off"
    )


def test_where_no_field_tells_environments_apart_their_fingerprints_do() -> None:
    here, there = changed(accelerators=("A100", "H100")), changed(accelerators=("H100", "A100"))

    assert difference(here, there) == f"{here.fingerprint} -> {there.fingerprint}"
    assert difference("ba9876543210", here) == f"ba9876543210 -> {here.fingerprint}"
    assert difference(here, "ba9876543210") == f"{here.fingerprint} -> ba9876543210"
    assert difference(here.fingerprint, here) == ""


def test_a_difference_is_one_line_of_bounded_length() -> None:
    told = difference(changed(driver="570"), changed(driver="\x1b[2J\n" + "5" * 10_000))

    assert told.startswith("driver 570 -> \\x1b[2J\\n555")
    assert told.endswith("555...")
    assert len(told) < 450


def test_variables_come_in_the_order_of_their_names() -> None:
    assert list(speed_variables({"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"})) == [
        "NCCL_ALGO",
        "OMP_NUM_THREADS",
    ]


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: other\n", "AMD EPYC 9654"),
        ("processor\t: 0\nCPU part\t: 0xd40\n", "aarch64"),
    ],
)
def test_the_cpu_is_named_by_its_model_or_else_by_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: str
) -> None:
    monkeypatch.setattr(environment.platform, "machine", lambda: "aarch64")
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)

    assert cpu_model(path) == expected


def test_describing_the_host_imports_no_torch() -> None:
    script = (
        "import sys\n"
        "from perfsuite.system.environment import describe_host\n"
        "describe_host({}, 1)\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )

    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

    assert ended.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GITHUB_EVENT_NAME": "pull_request"}, True),
        ({"GITHUB_EVENT_NAME": "push"}, False),
        ({"CHANGE_ID": ""}, False),
    ],
)
def test_ci_services_say_what_they_build(variables: dict[str, str], expected: bool) -> None:
    assert environment.is_pull_request(variables) == expected
