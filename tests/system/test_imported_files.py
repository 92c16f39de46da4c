"""Where a process imported its code from, and that an interpreter without perfsuite can tell."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.system import imported_files as module
from perfsuite.system.imported_files import imported_files


def test_what_is_imported_of_a_split_package_is_found_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path.resolve() / "site-packages"
    for name in ("split_acme/core/__init__.py", "split_acme/core/inner.py", "split_acme/one.py"):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).touch()
    monkeypatch.syspath_prepend(sources)
    for name in ("split_acme.core.inner", "split_acme.one"):
        importlib.import_module(name)

    found = imported_files()

    assert {name: file for name, file in found.items() if name.startswith("split_acme")} == {
        "split_acme": f"{sources}/split_acme",
        "split_acme.core": f"{sources}/split_acme/core/__init__.py",
        "split_acme.one": f"{sources}/split_acme/one.py",
    }
    assert found["pytest"] == pytest.__file__
    assert not [name for name in found if name.startswith("_pytest.")]


def test_the_standard_library_suffices() -> None:
    command = "import runpy, sys; print(len(runpy.run_path(sys.argv[1])['imported_files']()))"

    printed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", command, module.__file__],
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert int(printed) > 0
