"""What rows of gpu_acceptance.py find, each row's own code on a CPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu_acceptance.py"

sys.path.append(str(SCRIPT.parent))

import gpu_groups  # noqa: E402
from gpu_acceptance import Figures  # noqa: E402

from perfsuite.ranks.group import RankGroup, run_group  # noqa: E402
from perfsuite.ranks.messages import CallFunction, GroupPolicy, GroupRequest  # noqa: E402
from perfsuite.ranks.pickling import pack  # noqa: E402


def figures_on_a_cpu(folder: Path) -> Figures:
    figures = Figures(folder / "figures", dry=True)
    figures.__dict__["device"] = SimpleNamespace(is_real=False)
    return figures


def lines_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- what a group leaves behind ---


def calling(*call: Any) -> GroupRequest:
    policy = GroupPolicy(device="cpu")
    return GroupRequest(job=CallFunction(call=pack((call[0], call[1:]))), world_size=1, policy=policy)


@pytest.mark.slow
def test_a_rank_that_lives_and_its_folder_are_left_behind() -> None:
    run_group(calling(int))
    before = gpu_groups.what_is_there()

    with RankGroup(calling(time.sleep, 60)) as group:
        (rank,) = group._processes.values()
        while group.position(0).phase != "call":
            time.sleep(0.05)
        left = gpu_groups.what_is_there() - before

    assert {one.split()[1] for one in left if one.startswith("process")} == {str(rank.pid)}
    folder = f"{tempfile.gettempdir()}/perfsuite-{os.getpid()}-"
    assert [one.startswith(folder) for one in left].count(True) == 1
    after = gpu_groups.what_is_there() - before
    assert not [one for one in after if one.startswith(("process", folder))]


@pytest.mark.slow
def test_groups_of_one_rank_leave_nothing_in_a_fresh_process() -> None:
    with tempfile.TemporaryDirectory(prefix="row-") as folder:
        temporary, figures = Path(folder) / "tmp", Path(folder) / "figures"
        temporary.mkdir()
        row = ["--child", "gpu_groups:nccl_one", "--dry-run", "--out", str(figures)]
        paths = {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, str(SCRIPT), *row], env=os.environ | paths, check=True)
        *cells, last = lines_of(figures)

    assert {cell["verdict"] for cell in cells} == {"ok"}
    assert len(cells) == 8
    # Another process of this machine may have shared memory.
    assert last["what"] == "left behind"
    assert str(temporary) not in last["found"]
    assert "process" not in last["found"]
