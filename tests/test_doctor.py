"""The doctor: what each probe says of given values, and that this machine can be examined."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from perfsuite.doctor import Finding, examine
from perfsuite.doctor.cgroups import cpu_quota, memory_left_bytes
from perfsuite.doctor.examination import examine_timing_lock
from perfsuite.doctor.gpus import GpuState, examine_gpus, gpu_finding
from perfsuite.doctor.host import (
    cores_finding,
    governor_finding,
    load_finding,
    memory_finding,
    steal_finding,
    turbo_finding,
)
from perfsuite.doctor.kernel import parse_cpu_times, read_text
from perfsuite.doctor.pytorch import (
    TorchFacts,
    examine_torch,
    finding_of_ranks,
    interface_finding,
    sum_finding,
    torch_finding,
)
from perfsuite.doctor.storage import disk_finding, examine_folder, shared_memory_finding
from perfsuite.errors import RankFailureError
from perfsuite.measure.devices import GpuFacts
from perfsuite.timing_lock import TimingLock

MIB = 2**20
GIB = 2**30

H100 = GpuFacts(
    name="NVIDIA H100",
    uuid="GPU-1",
    memory_bytes=80 * GIB,
    compute_capability=(9, 0),
    power_limit_w=700.0,
    is_mig=False,
)
QUIET = GpuState(throttle_bits=0, is_persistent=True, process_ids=())


def test_a_finding_is_plain_data() -> None:
    finding = Finding("load", "warn", "9.00 on 2 cores", "end them")

    assert finding.as_dict() == {
        "subject": "load",
        "status": "warn",
        "text": "9.00 on 2 cores",
        "advice": "end them",
    }


# --- processors ---


def test_all_cores_of_the_machine_are_fine() -> None:
    assert cores_finding(8, 8, None) == Finding("cores", "ok", "8")


def test_a_smaller_affinity_is_told_and_fine() -> None:
    assert cores_finding(64, 4, None) == Finding("cores", "ok", "4 of 64 allowed")


def test_a_cgroup_quota_below_the_cores_is_a_warning() -> None:
    assert cores_finding(64, 64, 1.5) == Finding(
        "cores",
        "warn",
        "64, but a cgroup quota of 1.5: once it is used up, every process stands still until the "
        "next period",
        "raise the quota (docker --cpus), or use --cpuset-cpus in its place",
    )


def test_a_quota_of_all_cores_stops_nobody() -> None:
    assert cores_finding(2, 2, 2.0).status == "ok"


def test_one_core_is_a_warning() -> None:
    assert cores_finding(1, 1, None) == Finding(
        "cores",
        "warn",
        "1: ranks and loader workers take turns on one core",
        "compare only cells without ranks and workers, or use a machine with 2 cores or more",
    )


def test_a_governor_other_than_performance_is_a_warning() -> None:
    assert governor_finding(["powersave", "performance", "powersave"]) == Finding(
        "frequency governor",
        "warn",
        "performance, powersave: the clock follows the load",
        "sudo cpupower frequency-set --governor performance",
    )
    assert governor_finding(["performance"] * 2) == Finding(
        "frequency governor", "ok", "performance"
    )


def test_a_governor_that_a_virtual_machine_hides_is_no_warning() -> None:
    assert governor_finding([]) == Finding("frequency governor", "ok", "not readable here")


@pytest.mark.parametrize(
    ("no_turbo", "boost", "switch"),
    [
        ("0", None, "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"),
        (None, "1", "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"),
    ],
)
def test_turbo_is_a_warning_that_says_how_to_switch_it_off(
    no_turbo: str | None, boost: str | None, switch: str
) -> None:
    assert turbo_finding(no_turbo=no_turbo, boost=boost) == Finding(
        "turbo", "warn", "on: the clock follows temperature and busy cores", switch
    )


@pytest.mark.parametrize(("no_turbo", "boost"), [("1", None), (None, "0"), ("1", "1")])
def test_turbo_that_is_off_is_fine(no_turbo: str | None, boost: str | None) -> None:
    assert turbo_finding(no_turbo=no_turbo, boost=boost) == Finding("turbo", "ok", "off")


def test_turbo_that_cannot_be_read_is_no_warning() -> None:
    assert turbo_finding(no_turbo=None, boost=None) == Finding("turbo", "ok", "not readable here")


def test_a_load_of_half_the_cores_is_the_most_that_is_fine() -> None:
    assert load_finding(1.0, 2) == Finding("load", "ok", "1.00 on 2 cores")
    assert load_finding(1.01, 2) == Finding(
        "load",
        "warn",
        "1.01 on 2 cores: other processes compete with the ranks",
        "end them (see top), or wait a minute if they have ended",
    )
    assert load_finding(0.1, 1).text == "0.10 on 1 core"


def test_stolen_ticks_are_a_share_of_those_that_passed() -> None:
    before = parse_cpu_times("cpu  100 0 0 800 0 0 0 10 0 0\n")
    after = parse_cpu_times("cpu  110 0 0 827 0 0 0 13 0 0\n")

    assert steal_finding(before, after) == Finding(
        "steal time",
        "warn",
        "7.5 % of 40 ticks: the hypervisor gives this machine's processors to others",
        "use dedicated processors, or a quieter hour",
    )


def test_no_stolen_ticks_are_fine() -> None:
    assert steal_finding((0, 3), (40, 3)) == Finding("steal time", "ok", "0.0 % of 40 ticks")


def test_a_clock_that_stands_still_cannot_be_read() -> None:
    assert steal_finding((0, 0), (0, 0)) == Finding("steal time", "ok", "not readable here")


def test_guest_time_is_not_counted_twice() -> None:
    assert parse_cpu_times("cpu  70 0 20 900 5 0 1 4 60 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n") == (1000, 4)


# --- memory and control groups ---


def test_memory_is_judged_by_what_ranks_need() -> None:
    advice = "end other programs, or raise the container's limit"

    assert memory_finding(2 * GIB) == Finding("memory", "ok", "2.00 GiB available")
    assert memory_finding(1200 * MIB) == Finding(
        "memory", "warn", "1.17 GiB available: not enough for two ranks", advice
    )
    assert memory_finding(512 * MIB) == Finding(
        "memory", "fail", "512 MiB available: not enough for one rank", advice
    )


def kernel_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_smallest_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "0::/slice/service\n",
            "slice/cpu.max": "150000 100000\n",
            "slice/service/cpu.max": "max 100000\n",
        },
    )

    assert cpu_quota(mount / "groups", mount) == 1.5


def test_a_version_1_quota_is_read_where_the_container_mounts_its_own_group(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "4:cpu,cpuacct:/docker/8f3a\n3:memory:/docker/8f3a\n",
            "cpu/cpu.cfs_quota_us": "50000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )

    assert cpu_quota(mount / "groups", mount) == 0.5


def test_no_limit_and_no_control_groups_are_none(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "1:cpu:/\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )

    assert cpu_quota(mount / "groups", mount) is None
    assert memory_left_bytes(mount / "groups", mount) is None
    assert cpu_quota(tmp_path / "missing", mount) is None


def test_cached_files_do_not_count_as_used_memory(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "0::/\n",
            "memory.max": "1000000\n",
            "memory.current": "900000\n",
            "memory.stat": "anon 100000\ninactive_file 300000\n",
        },
    )

    assert memory_left_bytes(mount / "groups", mount) == 400_000


def test_a_version_1_memory_limit_is_read(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "4:memory:/job\n",
            "memory/job/memory.limit_in_bytes": "1000\n",
            "memory/job/memory.usage_in_bytes": "300\n",
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "300\n",
        },
    )

    assert memory_left_bytes(mount / "groups", mount) == 700


def test_a_kernel_file_that_is_not_there_has_no_text(tmp_path: Path) -> None:
    assert read_text(tmp_path / "missing") is None


# --- room ---


def test_shared_memory_below_dockers_default_is_a_failure() -> None:
    assert shared_memory_finding("shared memory", Path("/dev/shm"), 64 * MIB) == Finding(
        "shared memory", "ok", "64.0 MiB free in /dev/shm"
    )
    assert shared_memory_finding("shared memory", Path("/dev/shm"), 63 * MIB) == Finding(
        "shared memory",
        "fail",
        "63.0 MiB free in /dev/shm: loader workers pass their batches through it, and need "
        "64.0 MiB",
        "docker run --shm-size=1g, or remove what fills it",
    )


def test_little_room_on_a_disk_is_a_warning_and_none_a_failure() -> None:
    folder = Path("/data")

    assert disk_finding("temporary folder", folder, GIB) == Finding(
        "temporary folder", "ok", "1.00 GiB free in /data"
    )
    assert disk_finding("temporary folder", folder, MIB) == Finding(
        "temporary folder",
        "warn",
        "1.00 MiB free in /data: data sets and traces may need 256 MiB",
        "make room",
    )
    assert disk_finding("temporary folder", folder, 0).status == "fail"


def test_a_folder_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    assert examine_folder("temporary folder", lambda: missing, disk_finding) == Finding(
        "temporary folder",
        "fail",
        f"[Errno 2] No such file or directory: '{missing}'",
        "make the folder, or work in another one",
    )


def test_a_folder_that_cannot_be_written_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere

    assert examine_folder("current directory", lambda: tmp_path, disk_finding) == Finding(
        "current directory",
        "fail",
        f"{tmp_path} cannot be written by user {os.getuid()}",
        "change its permissions, or work in another folder",
    )


# --- another session ---


def hold_lock(folder: Path, is_held: Any, may_end: Any) -> None:
    lock = TimingLock(wait_s=0, say=print, folder=folder)
    lock.acquire()
    is_held.set()
    may_end.wait()


def test_another_timing_session_is_a_warning_that_names_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    is_held, may_end = context.Event(), context.Event()
    other = context.Process(target=hold_lock, args=(tmp_path, is_held, may_end))
    other.start()
    try:
        assert is_held.wait(10)
        finding = examine_timing_lock(TimingLock(wait_s=0, say=print, folder=tmp_path))
    finally:
        may_end.set()
        other.join()

    assert finding == Finding(
        "timing session",
        "warn",
        f"another timing session (process {other.pid}) holds this machine",
        "wait until it has ended",
    )


def test_a_free_machine_is_left_free(tmp_path: Path) -> None:
    examined = examine_timing_lock(TimingLock(wait_s=0, say=print, folder=tmp_path))
    again = examine_timing_lock(TimingLock(wait_s=0, say=print, folder=tmp_path))

    assert examined == again == Finding("timing session", "ok", "no other")


def test_a_lock_that_cannot_be_made_is_a_finding(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")

    finding = examine_timing_lock(TimingLock(wait_s=0, say=print, folder=folder))

    assert finding == Finding(
        "timing session",
        "fail",
        f"cannot lock {folder}/perfsuite-{os.getuid()}.lock: File exists",
        "make the folder writable",
    )


# --- GPUs ---


def test_a_quiet_gpu_is_fine() -> None:
    assert gpu_finding("GPU 0", H100, QUIET) == Finding("GPU 0", "ok", "NVIDIA H100, 80.0 GiB")


def test_a_gpu_that_tells_nothing_is_fine() -> None:
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
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=42)],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr("perfsuite.doctor.gpus.visible_gpus", lambda: [H100])
    monkeypatch.setattr("perfsuite.doctor.gpus.driver_version", lambda: "580.1")


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
def test_a_gpu_that_fell_off_the_bus_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: str) -> str:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lost)

    assert examine_gpus() == [
        Finding("GPUs", "fail", "NVML says: GPU is lost", "see nvidia-smi; restart the driver")
    ]


def test_a_machine_without_gpus_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.doctor.gpus.visible_gpus", list)

    assert examine_gpus() == [Finding("GPUs", "ok", "none visible; cells run on the CPU")]


# --- torch and its ranks ---


def facts(**changed: Any) -> TorchFacts:
    values: dict[str, Any] = {
        "version": "2.15.0+cu132",
        "cuda": "13.2",
        "cudnn": "92600",
        "nccl": "2.30.7",
        "num_gpus": 1,
        "num_threads": 1,
    }
    return TorchFacts(**values | changed)


def test_torch_that_sees_all_gpus_is_fine() -> None:
    assert torch_finding(facts(), 1) == Finding(
        "torch",
        "ok",
        "2.15.0+cu132 (CUDA 13.2, cuDNN 92600, NCCL 2.30.7), 1 thread a rank, 1 GPU",
    )


def test_torch_without_cuda_beside_a_gpu_is_a_failure() -> None:
    cpu_build = facts(version="2.15.0+cpu", cuda=None, cudnn=None, nccl=None, num_gpus=0)

    assert torch_finding(cpu_build, 2) == Finding(
        "torch",
        "fail",
        "2.15.0+cpu (no CUDA), 1 thread a rank, 0 GPUs, where NVML shows 2",
        "install a torch build with CUDA: https://pytorch.org/get-started",
    )


def test_torch_that_is_too_new_for_the_driver_is_a_failure() -> None:
    finding = torch_finding(facts(num_gpus=0, nccl=None, num_threads=2), 1)

    assert finding == Finding(
        "torch",
        "fail",
        "2.15.0+cu132 (CUDA 13.2, cuDNN 92600), 2 threads a rank, 0 GPUs, where NVML shows 1",
        "use a driver that supports CUDA 13.2 or newer, or an older torch",
    )


def test_a_wrong_sum_is_a_failure() -> None:
    assert sum_finding([3.0, 3.0]) == Finding(
        "gloo", "ok", "2 ranks summed over the loopback interface"
    )
    assert sum_finding([3.0, 1.0]) == Finding(
        "gloo",
        "fail",
        "2 ranks summed to 3, 1, not 3",
        "install torch again: no result of several ranks can be trusted",
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RankFailureError("rank 0 of 2 was killed\n  its log", rank=0), "rank 0 of 2 was killed"),
        (EOFError(), "EOFError"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_ranks_that_do_not_answer_are_a_finding(error: Exception, text: str) -> None:
    def fail() -> list[Any]:
        raise error

    assert finding_of_ranks(fail, "gloo", sum_finding, advice="look") == Finding(
        "gloo", "fail", text, "look"
    )


def test_a_host_name_on_the_loopback_interface_is_a_warning() -> None:
    advice = "for torchrun over several hosts, set GLOO_SOCKET_IFNAME (see: ip address)"

    assert interface_finding("box", "127.0.1.1", None) == Finding(
        "gloo between hosts",
        "warn",
        "host name 'box' is 127.0.1.1, where no other host can connect",
        advice,
    )
    assert interface_finding("box", None, None) == Finding(
        "gloo between hosts", "warn", "host name 'box' does not resolve", advice
    )


def test_an_address_of_its_own_or_a_chosen_interface_is_fine() -> None:
    assert interface_finding("box", "10.0.0.7", None) == Finding(
        "gloo between hosts", "ok", "host name 'box' is 10.0.0.7"
    )
    assert interface_finding("box", "127.0.0.1", "eth0") == Finding(
        "gloo between hosts", "ok", "GLOO_SOCKET_IFNAME=eth0"
    )


def test_real_ranks_tell_about_torch_and_sum_over_gloo() -> None:
    torch, torchvision, gloo, between_hosts = examine_torch({"GLOO_SOCKET_IFNAME": "eth7"})

    assert (torch.subject, torch.status) == ("torch", "ok"), torch
    assert "1 thread a rank" in torch.text
    assert (torchvision.subject, torchvision.status) == ("torchvision", "ok"), torchvision
    assert gloo == Finding("gloo", "ok", "2 ranks summed over the loopback interface")
    assert between_hosts.text == "GLOO_SOCKET_IFNAME=eth7"


def test_broken_nvml_is_told_in_place_of_what_ranks_would_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> list[GpuFacts]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr("perfsuite.session.visible_gpus", broken)

    assert examine_torch({}) == [
        Finding("ranks", "fail", "cannot be started: NVML says: GPU is lost", "see nvidia-smi")
    ]


def test_a_host_name_that_does_not_resolve_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    monkeypatch.setattr("perfsuite.session.Session.run_function", lambda *_: no_ranks())

    assert examine_torch({})[-1].text == "host name 'box' does not resolve"


def no_ranks() -> list[Any]:
    raise RankFailureError("rank 0 of 1 was killed", rank=0)


def test_the_examination_covers_every_subject_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.doctor.examination.examine_torch", list)

    subjects = [finding.subject for finding in examine()]

    assert [subject for subject in subjects if not subject.startswith("GPU ")] == [
        "perfsuite",
        "cores",
        "frequency governor",
        "turbo",
        "load",
        "steal time",
        "memory",
        "shared memory",
        "temporary folder",
        "current directory",
        "timing session",
        "GPUs",
    ]


def test_the_examination_imports_no_torch_here() -> None:
    script = "import sys, perfsuite.doctor; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
