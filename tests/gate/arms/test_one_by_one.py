"""Real launches of a cell that memory has no room for twice: one arm after the other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tiny_suites import make_arms, pair

from perfsuite.gate.arms.channel import Server
from perfsuite.gate.judge import judge as module
from perfsuite.gate.judge.judge import judge
from perfsuite.gate.judge.trial import Budget, CellPolicy

pytestmark = pytest.mark.slow

# Room for one: who finds the file there has none.
_SUITE = """
import os, pytest

ROOM = {room!r}

@pytest.fixture
def memory():
    try:
        os.close(os.open(ROOM, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        raise MemoryError("no room for another") from None
    yield
    os.remove(ROOM)

def test_large(memory, benchmark):
    benchmark(sum, range(1000))

def test_small(benchmark):
    benchmark(sum, range(1000))
"""


def suite(folder: Path) -> str:
    return _SUITE.format(room=str(folder / "room"))


def test_both_arms_run_the_cell_one_after_the_other_in_rounds_of_one_length(
    tmp_path: Path,
) -> None:
    arms = make_arms(tmp_path, suite(tmp_path))
    large = "test_cells.py::test_large"

    launches = pair(arms, one_by_one=frozenset({large}))

    runs = [launch.cells[large] for launch in launches.values()]
    assert [run.outcome for run in runs] == ["passed", "passed"]
    assert len(runs[0].rounds_s) == len(runs[1].rounds_s) > 0
    assert all(run.alternated_s > 0 for run in runs)


_OWN = """
import torch

def build():
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()

    return step

def test_alone(step_benchmark):
    step_benchmark(build)

def test_in_turns(step_benchmark):
    step_benchmark(build)
"""


@pytest.mark.parametrize("is_own", [False, True])
def test_an_arm_that_is_alone_in_a_cell_keeps_its_turn_from_round_to_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_own: bool
) -> None:
    heard: dict[str, Counter[str]] = {"base": Counter(), "head": Counter()}
    by_cell: dict[tuple[str, str], Counter[str]] = {}
    handle = Server._handle

    def listen(server: Server, peer: Any, message: dict[str, Any]) -> None:
        handle(server, peer, message)
        heard[peer.arm][message["kind"]] += 1
        if message["kind"] == "left":
            by_cell[peer.arm, message["cell"].partition("::")[2]] = heard[peer.arm]
            heard[peer.arm] = Counter()

    monkeypatch.setattr(Server, "_handle", listen)
    alone, in_turns = ("test_alone", "test_in_turns") if is_own else ("test_large", "test_small")
    own = ("-p", "perfsuite", "--perf-device=cpu") if is_own else ()
    arms = make_arms(tmp_path, _OWN if is_own else suite(tmp_path), *own)

    launches = pair(arms, one_by_one=frozenset({f"test_cells.py::{alone}"}))

    for arm, launch in launches.items():
        num_rounds = len(launch.cells[f"test_cells.py::{alone}"].rounds_s)
        kept, given = by_cell[arm, alone], by_cell[arm, in_turns]
        assert kept["round"] == num_rounds > 10
        assert kept["turn"] == kept["done"] < num_rounds
        assert given["round"] == 0
        assert given["turn"] >= len(launch.cells[f"test_cells.py::{in_turns}"].rounds_s)


def test_the_judge_falls_back_to_it_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What else this machine does is not looked at.
    monkeypatch.setattr(module.fitness, "why_unfit", lambda *_: None)
    base, head = make_arms(tmp_path, suite(tmp_path))
    # Wide: what is looked at is whether the cells can be judged at all.
    asked = CellPolicy(tolerance=0.9, limit=10.0, floor_s=0.0)
    names = ["test_cells.py::test_large", "test_cells.py::test_small"]

    judgement = judge(
        base,
        head,
        dict.fromkeys(names, asked),
        budget=Budget(max_pairs=4, max_s=1e9, timeout_s=60.0),
        seed=1,
        priors={},
        say=lambda _: None,
    )

    large, small = judgement.trials
    assert large.word in ("PASS", "IMPROVED", "INCONCLUSIVE")
    assert len(large.raw) >= 2
    assert large.reason is not None
    assert "memory has no room for both arms" in large.reason
    assert small.reason is None or "memory" not in small.reason
