"""What the doctor says of processors, clocks, load, memory, disks and limits of control groups."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfsuite.cli.doctor.findings import Finding
from perfsuite.cli.doctor.host import (
    cores_finding,
    cpu_quota,
    governor_finding,
    load_finding,
    memory_finding,
    memory_left_bytes,
    read_text,
    shared_memory_finding,
    steal_finding,
    turbo_finding,
)

MIB = 2**20
GIB = 2**30


def test_all_cores_of_the_machine_are_fine() -> None:
    assert cores_finding(8, 8, None) == Finding("cores", "ok", "8")


def test_a_smaller_affinity_is_shown_and_fine() -> None:
    assert cores_finding(64, 4, None) == Finding("cores", "ok", "4 of 64 allowed")


def test_a_cgroup_quota_below_the_cores_is_a_warning() -> None:
    assert cores_finding(64, 64, 1.5) == Finding(
        "cores",
        "warn",
        "64, but a cgroup quota of 1.5: once it is used up, every process stands still until the "
        "next period",
        "raise the quota (docker --cpus), or use --cpuset-cpus in its place",
    )


def test_a_quota_of_all_cores_is_fine() -> None:
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


def test_time_that_the_hypervisor_takes_is_a_warning_above_the_gates_tolerance() -> None:
    assert steal_finding(0.075) == Finding(
        "steal time",
        "warn",
        "7.5 %: the hypervisor gives this machine's processors to others",
        "use dedicated processors, or a quieter hour",
    )
    assert steal_finding(0.02) == Finding("steal time", "ok", "2.0 %")


def test_memory_is_judged_by_what_ranks_need() -> None:
    advice = "end other programs, or raise the container's limit"

    assert memory_finding(2 * GIB) == Finding("memory", "ok", "2.00 GiB available")
    assert memory_finding(1200 * MIB) == Finding(
        "memory", "warn", "1.17 GiB available: not enough for two ranks", advice
    )
    assert memory_finding(512 * MIB) == Finding(
        "memory", "fail", "512 MiB available: not enough for one rank", advice
    )


# --- limits of control groups, in folders laid out as the kernel does ---


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


def test_limits_of_the_first_version_of_control_groups_count(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "5:cpu,cpuacct:/d\n4:memory:/d\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "cpu/d/cpu.cfs_quota_us": "50000\n",
            "cpu/d/cpu.cfs_period_us": "100000\n",
            "memory/d/memory.limit_in_bytes": "1000000\n",
            "memory/d/memory.usage_in_bytes": "900000\n",
        },
    )

    assert cpu_quota(mount / "groups", mount) == 0.5
    assert memory_left_bytes(mount / "groups", mount) == 100_000


def test_no_limit_and_no_control_groups_are_none(tmp_path: Path) -> None:
    mount = kernel_files(
        tmp_path,
        {
            "groups": "0::/\n",
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
            "memory.current": "900000\n",
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


def test_a_kernel_file_that_is_not_there_has_no_text(tmp_path: Path) -> None:
    assert read_text(tmp_path / "missing") is None


# --- shared memory ---


@pytest.mark.parametrize(("num_mib", "status"), [(64, "ok"), (63, "fail")])
def test_shared_memory_below_dockers_default_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, num_mib: int, status: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=num_mib * MIB))

    finding = shared_memory_finding(Path("/dev/shm"))

    need = ": loader workers pass their batches through it, and need 64.0 MiB"
    advice = "docker run --shm-size=1g, or remove what fills it"
    text = f"{num_mib}.0 MiB free in /dev/shm{need * (status == 'fail')}"
    assert finding == Finding(
        "shared memory",
        status,  # type: ignore[arg-type]
        text,
        advice if status == "fail" else None,
    )


def test_shared_memory_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    assert shared_memory_finding(missing) == Finding(
        "shared memory",
        "fail",
        f"[Errno 2] No such file or directory: '{missing}'",
        "mount it, as docker does",
    )
