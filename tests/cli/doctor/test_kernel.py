"""Limits of control groups, read from folders laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

from perfsuite.cli.doctor.kernel import cpu_quota, memory_left_bytes, read_text


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
