"""Every example is measured, in a repository of its own: `make test-examples`.

`python benchmarks/example_sessions.py` gates them, which takes minutes and a quiet machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from example_sessions import EXAMPLES, NAMES, Example


@pytest.mark.parametrize("name", NAMES)
def test_an_example_ends_as_its_readme_says(name: str, tmp_path: Path) -> None:
    ended, _, wrong = Example(name, tmp_path).run("measured")

    assert wrong == [], ended.output


def test_models_of_hugging_face_compute_the_same_with_their_dropout(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "hf_models", tmp_path / "hf_models")

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--perf-device=cpu", "tests"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    assert "6 passed" in ended.stdout


def test_a_benchmark_is_short_and_a_training_knows_nothing_of_it() -> None:
    for path in (path for name in NAMES for path in (EXAMPLES / name).rglob("*.py")):
        if path.parent.name == "benchmarks":
            assert len(path.read_text().splitlines()) <= 15, path
        else:
            assert "perfsuite" not in path.read_text(), path
