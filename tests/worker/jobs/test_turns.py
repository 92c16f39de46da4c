"""Ranks of two arms take turns: a pair of real two-rank cells; every step is watched."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pytest

from perfsuite.gate.arms import channel
from perfsuite.gate.arms.arm import Arm, Launch, PairPlan
from perfsuite.gate.arms.launch import run_pair
from perfsuite.gate.arms.turns import Scheduler

pytestmark = pytest.mark.slow

CELL = "test_ranks.py::test_ranks"
LOADED = "test_ranks.py::test_loader"
NUM_ROUNDS = 3
SUITE = f"""
import os, time
import torch
from perfsuite import Recipe, Workload

CALLS = os.path.join(os.path.dirname(__file__), "calls")

def watched_loss(outputs, targets):
    began = time.monotonic()
    loss = torch.nn.functional.cross_entropy(outputs, targets)
    with open(f"{{CALLS}}-{{os.getpid()}}", "a") as file:
        file.write(f"{{began}} {{time.monotonic()}}\\n")
    return loss

def build_dataset(split):
    return torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))

WATCHED = Workload(
    name="watched",
    build_model=lambda: torch.nn.Linear(4, 2),
    build_dataset=build_dataset,
    loss=watched_loss,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    micro_batch_size=4,
    metric="none",
)

class WatchedData(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        began = time.monotonic()
        while time.monotonic() < began + 0.0002:
            pass
        if torch.utils.data.get_worker_info() is not None:
            with open(f"{{CALLS}}-loader", "a") as file:
                file.write(f"{{began}} {{time.monotonic()}}\\n")
        return torch.zeros(4), torch.tensor(0)

LOADED = Workload(
    name="loaded",
    build_model=lambda: torch.nn.Linear(4, 2),
    build_dataset=lambda split: WatchedData(),
    loss=torch.nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    micro_batch_size=4,
    metric="none",
)

def test_ranks(train_benchmark):
    train_benchmark(WATCHED, Recipe(parallel="ddp:2"), rounds={NUM_ROUNDS}, iterations=2)

def test_loader(train_benchmark):
    train_benchmark(LOADED, Recipe(num_workers=1, prefetch_factor=64), rounds=6, iterations=4)
"""


class WatchedScheduler(Scheduler):
    """Remembers from when to when each arm had its turn."""

    turns: list[tuple[str, float, float]] = []  # noqa: RUF012  # the server makes the object
    _began_s = 0.0

    def end(self, arm: str) -> list[str]:
        self.turns.append((arm, self._began_s, time.monotonic()))
        return super().end(arm)

    def _grant(self) -> list[str]:
        granted = super()._grant()
        if granted:
            self._began_s = time.monotonic()
        return granted


def steps_of(tree: Path) -> list[tuple[float, float]]:
    """When each forward of any rank began and ended."""
    lines = [line for file in tree.glob("calls-*") for line in file.read_text().splitlines()]
    return [(float(began), float(ended)) for began, ended in map(str.split, lines)]


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, float]]:
    monkeypatch.setattr(channel, "Scheduler", WatchedScheduler)
    monkeypatch.setattr(WatchedScheduler, "turns", [])
    return WatchedScheduler.turns


def run_cell(cell: str, folder: Path) -> dict[str, Launch]:
    """One pair of launches of one cell of the watched suite."""
    arms = []
    for name in ("base", "head"):
        (folder / name).mkdir()
        (folder / name / "test_ranks.py").write_text(SUITE)
        (folder / name / "pytest.ini").write_text("[pytest]\n")
        arms.append(
            Arm(
                name=name,
                tree=folder / name,
                import_roots=(folder / name,),
                pytest_arguments=("-p", "no:cacheprovider"),
                python=sys.executable,
            )
        )
    plan = PairPlan(number=1, first="head", hash_seed=1, core=0, timeout_s=120.0)
    with tempfile.TemporaryDirectory() as scratch:
        launches = run_pair(arms, plan, choose=lambda suites: [cell], scratch=Path(scratch))
    for launch in launches.values():
        run = launch.cells[cell]
        assert (launch.failure, run.outcome, run.reason) == (None, "passed", None)
        assert launch.takes_turns  # plugin and arm speak one protocol
    return launches


def test_no_rank_of_an_arm_works_while_the_other_arm_has_its_turn(
    tmp_path: Path, turns: list[tuple[str, float, float]]
) -> None:
    launches = run_cell(CELL, tmp_path)

    for launch in launches.values():
        run = launch.cells[CELL]
        assert len(run.rounds_s) == NUM_ROUNDS
        assert run.record is not None
        assert run.record["world_size"] == 2
        assert launch.modules["torch"].endswith("torch/__init__.py")  # only its ranks load it
    assert [arm for arm, *_ in turns] == ["head", "base", "base", "head", "head", "base"]
    for arm, granted_s, ended_s in turns:
        other = "base" if arm == "head" else "head"
        assert len(list((tmp_path / other).glob("calls-*"))) == 2
        assert all(
            ended < granted_s or began > ended_s for began, ended in steps_of(tmp_path / other)
        )
        inside = [began for began, _ in steps_of(tmp_path / arm) if granted_s < began < ended_s]
        assert len(inside) >= 2 * 2  # ranks and iterations; after the last turn, counting


def test_no_loader_worker_fills_its_queue_while_the_other_arm_has_its_turn(
    tmp_path: Path, turns: list[tuple[str, float, float]]
) -> None:
    run_cell(LOADED, tmp_path)

    num_inside = 0
    assert len(turns) == 12
    for arm, granted_s, ended_s in turns:
        other, own = (tmp_path / name for name in (("base", "head")[arm == "base"], arm))
        assert not [began for began, _ in steps_of(other) if granted_s < began < ended_s]
        num_inside += sum(granted_s < began < ended_s for began, _ in steps_of(own))
    assert num_inside > 0  # a turn may be too short for a worker to wake up in
