"""Tests of where a launch reads bytecode: an arm's own folder, and beside what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.gate.arms.launched import load_log

SCRIPT = f"""
import runpy
runpy.run_path({load_log.__file__!r})["read_installed_bytecode"]()
import {{}} as module
print(module.__cached__)
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages, and one of code under test, with a module each."""
    folder = tmp_path / "site-packages"
    for name in ("site-packages/installed", "tree/tested"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir()
        path.write_text("")
    return folder


def cached(packages: Path, module: str, **environment: str) -> Path:
    """Where an interpreter with a cache of its own has a module's bytecode."""
    paths = [packages, packages.parent / "tree"]
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(module)],
        env={
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PYTHONPYCACHEPREFIX": str(packages.parent / "own"),
            **environment,
        },
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return Path(found.strip())


def test_installed_modules_keep_the_bytecode_that_they_have(packages: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", packages], env={}, check=True)

    assert cached(packages, "installed").parent == packages / "__pycache__"
    assert not (packages.parent / "own").joinpath(*packages.parts[1:]).exists()
    assert cached(packages, "json").is_relative_to(Path(os.__file__).parent)


def test_nothing_is_written_beside_an_installed_module(packages: Path) -> None:
    assert cached(packages, "installed").is_relative_to(packages.parent / "own")
    assert [path.name for path in packages.iterdir()] == ["installed.py"]


def test_code_under_test_is_compiled_in_the_folder_of_the_arm(packages: Path) -> None:
    tree = packages.parent / "tree"
    subprocess.run([sys.executable, "-m", "compileall", "-q", tree], env={}, check=True)

    assert cached(packages, "tested").is_relative_to(packages.parent / "own")


def test_without_such_a_folder_nothing_changes(packages: Path) -> None:
    assert cached(packages, "tested", PYTHONPYCACHEPREFIX="").parent.name == "__pycache__"
