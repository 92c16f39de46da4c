"""Tests of the log of what a process loads, in an interpreter of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.gate.arms.launched import load_log


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
def test_a_process_logs_in_pythons_development_mode_too(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    hook, code, log = (tmp_path / name for name in ("hook", "côde", "log"))
    for folder in (hook, code):
        folder.mkdir()
    (hook / "sitecustomize.py").write_bytes(Path(load_log.__file__).read_bytes())
    (code / "tested.py").write_text("")
    watched = {load_log.LOG: str(log), load_log.WATCHED: str(code)}
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (hook, code)))}

    ended = subprocess.run(
        [sys.executable, *options, "-c", "import tested"],
        env=os.environ | watched | paths,
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.split(" ", 2) for line in log.read_text("ascii").splitlines()]
    assert str(code / "tested.py") in {ast.literal_eval(text) for _, _, text in lines}
