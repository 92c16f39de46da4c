"""What rows of gpu_acceptance.py find, each row's own code on a CPU."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu_acceptance.py"

sys.path.append(str(SCRIPT.parent))

import gpu_groups  # noqa: E402
import gpu_numerics  # noqa: E402
import gpu_sessions  # noqa: E402
import session_log  # noqa: E402
from gpu_acceptance import Figures  # noqa: E402

from perfsuite.ranks.group import RankGroup, run_group  # noqa: E402
from perfsuite.ranks.messages import CallFunction, GroupPolicy, GroupRequest  # noqa: E402
from perfsuite.ranks.pickling import pack  # noqa: E402
from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow  # noqa: E402
from perfsuite.records.recipe import Recipe  # noqa: E402
from perfsuite.system.signals import ends_on_signals  # noqa: E402


def figures_on_a_cpu(folder: Path) -> Figures:
    figures = Figures(folder / "figures", dry=True)
    figures.__dict__["device"] = SimpleNamespace(is_real=False, torch_device=torch.device("cpu"))
    return figures


def lines_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Those whose code a CPU can run, whatever it is worth there.
ON_A_CPU = {
    "gpu_numerics": ("noise_floor", "planted"),
    "gpu_groups": ("nccl_one", "gloo_shared_gpu"),
    "gpu_sessions": ("profile", "a_a", "turns", "baseline", "matrix"),
}


@pytest.mark.soak  # whole sessions, minutes of them
@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in ON_A_CPU.items() for name in names]
)
def test_the_code_of_a_row_for_gpus_runs_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)

    getattr(importlib.import_module(module), name)(figures_on_a_cpu(tmp_path))

    assert lines_of(tmp_path / "figures")


@pytest.mark.slow
def test_a_mistake_that_is_not_found_fails_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_numerics, "MISTAKES", ("doubled", "none at all"))

    gpu_numerics.planted(figures_on_a_cpu(tmp_path))

    found = {line["what"]: line["verdict"] for line in lines_of(tmp_path / "figures")}
    assert found == {"no mistake": "ok", "doubled": "ok", "none at all": "FAIL"}


# --- what a group leaves behind ---


def calling(*call: Any) -> GroupRequest:
    policy = GroupPolicy(device="cpu")
    return GroupRequest(
        job=CallFunction(call=pack((call[0], call[1:]))), world_size=1, policy=policy
    )


@pytest.mark.slow
def test_a_rank_that_lives_and_its_folder_are_left_behind() -> None:
    run_group(calling(int))
    before = gpu_groups.what_is_there()

    with RankGroup(calling(time.sleep, 60)) as group:
        (rank,) = group._processes.values()
        while group.position(0).phase != "call":
            assert group.poll(0.05) is None
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


# --- a verification in two starts ---


class CutOffSession:
    """One that is cut off at the second recipe, unless that is `fp64`."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def verify_each(self, workload: str, recipes: list[Recipe]) -> list[EquivalenceReport]:
        (recipe,) = recipes
        if self.seen == ["fp32"] and recipe.precision != "fp64":
            raise SystemExit
        self.seen.append(recipe.precision)
        status = "no power" if recipe.precision == "fp64" else "equivalent"
        row = EquivalenceRow.of(recipe, "T0", status, "as told", error=0.25, limit=1.0)  # type: ignore[arg-type]
        return [
            EquivalenceReport(
                workload=workload, recipe=recipe.as_dict(), rows=(row,), inapplicable={}
            )
        ]


def test_a_second_start_verifies_what_the_first_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("fp32", "bf16", "fp64")
    recipes = [("toy-mlp", Recipe(precision=name)) for name in names]
    monkeypatch.setattr(gpu_numerics, "_recipes", lambda: iter(recipes))
    seen: list[str] = []
    monkeypatch.setattr(gpu_numerics, "open_session", lambda _: CutOffSession(seen))
    with pytest.raises(SystemExit):
        gpu_numerics.verify(figures_on_a_cpu(tmp_path))
    assert seen == ["fp32"]
    (tmp_path / "figures").unlink()
    seen.append("a second start")

    gpu_numerics.verify(figures_on_a_cpu(tmp_path))

    assert seen == ["fp32", "a second start", "bf16", "fp64"]
    lines = lines_of(tmp_path / "figures")
    assert [line["what"] for line in lines if line["verdict"] == "ok"] == [
        "toy-mlp",
        "toy-mlp {'precision': 'bf16'}",
        "toy-mlp {'precision': 'fp64'}",
    ]
    told = {line["what"]: line["found"] for line in lines if line["verdict"] == "told"}
    assert told.pop("largest shares").startswith("0.25, toy-mlp {'precision': 'fp64'}; ")
    assert told == {
        "verified": "3 of 3, 1 by an earlier start",
        "toy-mlp {'precision': 'fp64'}": "T0 no power: as told",
    }


def test_what_a_gpu_has_verified_comes_last() -> None:
    recipes = [recipe for _, recipe in gpu_numerics._recipes()]
    changed = [
        {name for name, value in recipe.as_dict().items() if value != Recipe().as_dict()[name]}
        for recipe in recipes
    ]

    assert {*map(frozenset, changed[-21:])} == {frozenset(), frozenset({"precision"})}
    early = set().union(*changed[:-21])
    assert early >= {"parallel", "checkpointing", "comm_hook", "clip_grad_norm", "compile"}
    assert set() not in changed[:-21]


# --- gates ---


# It ends its parent as a budget that is spent does, once its line is kept, and then waits.
GATE = """
import os, pathlib, time
print('a pair', flush=True)
while not pathlib.Path('../a-a.txt').read_text():
    time.sleep(0.05)
os.kill(os.getppid(), 15)
time.sleep(60)
"""


def gate_once(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # in this process; the session has its own
    gpu_sessions.gate_command = lambda *_: [sys.executable, "-c", GATE]
    with ends_on_signals():
        gpu_sessions._gate(figures_on_a_cpu(folder), folder / "a-a")


def test_a_gate_that_is_cut_off_tells_its_pairs(tmp_path: Path) -> None:
    raw = [[1.0, 1.01], [1.0, 0.99]]
    cells = {"benchmarks/test_training.py::test_lenet": {"word": "INCONCLUSIVE", "raw": raw}}
    kept = json.dumps({"schema": 1, "comparisons": [{"base": "1", "head": "2", "cells": cells}]})
    (tmp_path / "a-a" / "results").mkdir(parents=True)
    (tmp_path / "a-a" / "results" / "pairs.json").write_text(kept)
    process = multiprocessing.get_context("fork").Process(target=gate_once, args=(tmp_path,))

    process.start()
    process.join(30)

    assert process.exitcode == 128 + signal.SIGTERM
    assert (tmp_path / "a-a.txt").read_text() == "a pair\n"
    (line,) = lines_of(tmp_path / "figures")
    assert line["what"] == "test_lenet, cut off, 2 pairs"
    assert line["found"] == "mean -0.005%, sd 1.414%"


def test_lines_of_a_command_are_kept_as_they_come(tmp_path: Path) -> None:
    waits = "print('one', flush=True)\nwhile not open('kept').read(): pass\nprint('two')"

    ended = session_log.run([sys.executable, "-c", waits], tmp_path, output=tmp_path / "kept")

    assert ended.output == "one\ntwo\n"
    assert (tmp_path / "kept").read_text() == ended.output


@pytest.mark.parametrize(
    ("gated", "found", "verdict"),
    [
        ({"raw": [[0.0201, 0.0202], [0.02, 0.0199]]}, "0.02005 for 0.02", "ok"),
        ({"raw": [[0.0221, 0.0222]]}, "0.02215 for 0.02", "FAIL"),
        ({"word": "INVALID", "reason": "a cause", "raw": []}, "INVALID: a cause", "FAIL"),
        ({"word": "SKIPPED", "reason": "no tf32", "raw": None}, "SKIPPED: no tf32", "FAIL"),
        ({}, "no verdict: None", "FAIL"),
    ],
)
def test_a_cell_in_turns_is_as_fast_as_alone(
    tmp_path: Path, gated: dict[str, Any], found: str, verdict: str
) -> None:
    alone = {"name": "test_step", "stats": {"median": 0.02}}

    gpu_sessions.compare_with_turns(figures_on_a_cpu(tmp_path), alone, gated)

    (line,) = lines_of(tmp_path / "figures")
    assert (line["found"], line["verdict"]) == (found, verdict)
