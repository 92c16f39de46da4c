"""What a base that failed is told that head has and git does not track."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfsuite.gate.provenance.untracked import name_lacking


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("ModuleNotFoundError: No module named 'shop._version'", "src/shop/_version.py"),
        ("ImportError: cannot import name '_version' from 'shop' (x)", "src/shop/_version.py"),
        ("No module named 'shop._speed'", "src/shop/_speed.cpython-311.so"),
        ("[Errno 2] No such file or directory: '{base}/data/train/a.csv'", "data"),
        ("No module named 'shop.tracked'", None),  # which the reason says
        ("No module named 'numpy'", None),
        ("AssertionError", None),
    ],
)
def test_a_file_that_head_alone_has_is_named_with_what_to_do(
    tmp_path: Path, reason: str, name: str | None
) -> None:
    base, head = tmp_path / "base", tmp_path / "head"
    for file in ("src/shop/_version.py", "src/shop/tracked.py", "data/train/a.csv"):
        (head / file).parent.mkdir(parents=True, exist_ok=True)
        (head / file).touch()
    (head / "src/shop/_speed.cpython-311.so").write_bytes(b"\0")
    base.mkdir()
    for command in ("init --quiet", "add src/shop/tracked.py"):
        subprocess.run(["git", "-C", str(head), *command.split()], check=True)

    said = name_lacking(reason.format(base=base), head, base, [head / "src", head])

    if name is None:
        assert said is None
    else:
        assert str(said).startswith(f"head has {name}, which git does not track: ")
        assert ("perf_share" in str(said)) == (not name.endswith(".so"))
        assert "--perf-base-build" in str(said)
