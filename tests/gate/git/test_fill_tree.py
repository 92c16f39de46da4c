"""What head may share with the base's tree, and what is linked there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.git.worktree import check_shared, share_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a file that git tracks, and with others."""
    root = tmp_path.resolve() / "head"
    for file in ("pkg/tracked.py", "pkg/_version.py", "data/a/b.csv", "built/lib/fast.so.1"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("head")
    for command in ("init --quiet", "add pkg/tracked.py"):
        subprocess.run(["git", "-C", str(root), *command.split()], check=True)
    return root


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pkg/tracked.py", "perf_share names 'pkg/tracked.py', which git tracks: the base has its"),
        ("pkg", "perf_share names 'pkg', which git tracks"),
        ("built", "perf_share names 'built', and {root}/built/lib/fast.so.1 is compiled code"),
        ("../secrets", "perf_share names '../secrets'; name a path inside of {root}"),
        ("/etc", "perf_share names '/etc'; name a path inside of {root}"),
    ],
)
def test_what_each_arm_needs_of_its_own_is_not_shared(root: Path, name: str, why: str) -> None:
    with pytest.raises(SettingError) as refused:
        check_shared(root, ["data", name])

    assert str(refused.value).startswith(why.format(root=root))


def test_what_head_alone_has_is_linked(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "base"
    (tree / "data").mkdir(parents=True)
    shared = ["pkg/_version.py", "data", "missing.txt"]

    check_shared(root, shared)
    linked = share_files(root, tree, shared)

    assert linked == ("pkg/_version.py",)
    assert (tree / "pkg/_version.py").resolve() == root / "pkg/_version.py"
    assert not (tree / "data").is_symlink()
