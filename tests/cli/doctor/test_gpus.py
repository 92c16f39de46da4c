"""What the doctor says of GPUs, with NVML played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from perfsuite.cli.doctor.findings import Finding
from perfsuite.cli.doctor.gpus import GpuState, examine_gpus, gpu_finding
from perfsuite.system.gpus import GpuFacts

H100 = GpuFacts(
    name="NVIDIA H100",
    uuid="GPU-1",
    memory_bytes=80 * 2**30,
    compute_capability=(9, 0),
    power_limit_w=700.0,
    is_mig=False,
)
QUIET = GpuState(throttle_bits=0, is_persistent=True, process_ids=())


def test_a_quiet_gpu_is_fine() -> None:
    assert gpu_finding("GPU 0", H100, QUIET) == Finding("GPU 0", "ok", "NVIDIA H100, 80.0 GiB")


def test_a_gpu_that_shows_nothing_is_fine() -> None:
    state = GpuState(throttle_bits=None, is_persistent=None, process_ids=None)

    assert gpu_finding("GPU 0", H100, state).status == "ok"


def test_an_idle_gpu_with_set_clocks_is_not_throttled() -> None:
    bits = (
        pynvml.nvmlClocksThrottleReasonGpuIdle
        | pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting
    )

    state = GpuState(throttle_bits=bits, is_persistent=True, process_ids=())

    assert gpu_finding("GPU 0", H100, state).status == "ok"


def test_other_processes_throttling_and_no_persistence_are_warnings() -> None:
    hot = (
        pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    )

    used = GpuState(throttle_bits=hot, is_persistent=False, process_ids=(7, 8))
    throttled = GpuState(throttle_bits=hot, is_persistent=False, process_ids=())
    slow = GpuState(throttle_bits=0, is_persistent=False, process_ids=())

    assert [gpu_finding("GPU 1", H100, state) for state in (used, throttled, slow)] == [
        Finding(
            "GPU 1",
            "warn",
            "NVIDIA H100, 80.0 GiB: processes compute on it: 7, 8",
            "end them, or wait",
        ),
        Finding(
            "GPU 1",
            "warn",
            "NVIDIA H100, 80.0 GiB: its clock is held down: power cap, hardware thermal slowdown",
            "let it cool, or raise its limit (nvidia-smi --query --display=PERFORMANCE,POWER)",
        ),
        Finding(
            "GPU 1",
            "warn",
            "NVIDIA H100, 80.0 GiB: without persistence mode each cell waits for the driver to "
            "load",
            "sudo nvidia-smi --persistence-mode=1",
        ),
    ]


@pytest.mark.parametrize(
    ("changed", "text", "advice"),
    [
        (
            {"awaits_reset": True},
            "rows of its memory are broken, and in use until it is reset",
            "sudo nvidia-smi --gpu-reset, or restart the machine",
        ),
        (
            {"compute_mode": pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS},
            "one process alone may use it, so a gate runs one launch after the other",
            "sudo nvidia-smi --compute-mode=DEFAULT",
        ),
        (
            {"most_lanes": 16},
            "its PCIe link has 8 of 16 lanes",
            "seat it anew, or look for a riser that is too long",
        ),
    ],
)
def test_what_slows_a_gpu_for_good_is_a_warning(
    changed: dict[str, Any], text: str, advice: str
) -> None:
    gpu = H100._replace(pcie=(5, 8))
    state = QUIET._replace(**changed)

    assert gpu_finding("GPU 0", gpu, state) == Finding(
        "GPU 0", "warn", f"NVIDIA H100, 80.0 GiB: {text}", advice
    )


def not_supported(_: object) -> int:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML with one GPU that shows no throttling and on which process 42 computes."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetPersistenceMode": lambda _: 1,
        "nvmlDeviceGetCurrentClocksThrottleReasons": not_supported,
        "nvmlDeviceGetRemappedRows": not_supported,
        "nvmlDeviceGetComputeMode": lambda _: pynvml.NVML_COMPUTEMODE_DEFAULT,
        "nvmlDeviceGetMaxPcieLinkWidth": not_supported,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=42)],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr("perfsuite.system.gpus.visible_gpus", lambda: [H100])
    monkeypatch.setattr("perfsuite.system.gpus.driver_version", lambda: "580.1")


@pytest.mark.usefixtures("one_gpu")
def test_each_gpu_gets_a_finding_after_the_driver() -> None:
    assert examine_gpus() == [
        Finding("GPUs", "ok", "1 visible, driver 580.1"),
        Finding(
            "GPU 0",
            "warn",
            "NVIDIA H100, 80.0 GiB: processes compute on it: 42",
            "end them, or wait",
        ),
    ]


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("num_gpus", "blocked", "found"),
    [
        (2, set(), []),
        (2, {("GPU-0", "GPU-1")}, ["GPUs 0 and 1 copy to each other through the host's memory"]),
        (
            3,
            {("GPU-0", "GPU-2"), ("GPU-1", "GPU-2")},
            ["GPUs 0 and 2 and 1 other pair copy to each other through the host's memory"],
        ),
    ],
)
def test_gpus_that_do_not_reach_each_other_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, blocked: set[tuple[str, str]], found: list[str]
) -> None:
    gpus = [H100._replace(uuid=f"GPU-{index}") for index in range(num_gpus)]
    monkeypatch.setattr("perfsuite.system.gpus.visible_gpus", lambda: gpus)

    def status(one: str, other: str, kind: int) -> int:
        assert kind == pynvml.NVML_P2P_CAPS_INDEX_READ
        is_blocked = (one, other) in blocked
        return pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED if is_blocked else 0

    monkeypatch.setattr(pynvml, "nvmlDeviceGetP2PStatus", status)

    findings = [one for one in examine_gpus() if one.subject == "GPUs"][1:]

    assert [(one.status, one.text) for one in findings] == [("warn", text) for text in found]


@pytest.mark.usefixtures("one_gpu")
def test_a_daemon_that_shares_gpus_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    without = examine_gpus()
    (tmp_path / "control").touch()

    (added,) = [one for one in examine_gpus() if one not in without]

    assert added == Finding(
        "GPUs",
        "warn",
        "the MPS daemon runs kernels of other processes beside those that are timed",
        "echo quit | nvidia-cuda-mps-control",
    )


@pytest.mark.usefixtures("one_gpu")
def test_a_gpu_that_fell_off_the_bus_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: str) -> str:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lost)

    assert examine_gpus() == [
        Finding(
            "GPUs",
            "fail",
            "a GPU does not answer: GPU is lost (NVML); look for Xid in the kernel's log (dmesg), "
            "and reset the GPU or restart the machine",
            "see nvidia-smi; restart the driver",
        )
    ]


def test_a_machine_without_gpus_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.system.gpus.visible_gpus", list)

    assert examine_gpus() == [Finding("GPUs", "ok", "none visible; cells run on the CPU")]
