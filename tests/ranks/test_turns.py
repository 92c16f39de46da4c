"""Ranks of two arms take turns: a pair of real two-rank cells; every step is watched."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

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


@dataclass(frozen=True)
class Pair:
    """One pair of launches of both cells, and the turns that they took.

    Attributes:
        folder: Holds the trees "base" and "head".
        turns: Arm, and when its turn began and ended, of each cell.
    """

    folder: Path
    launches: dict[str, Launch]
    turns: dict[str, list[tuple[str, float, float]]]

    def steps_of(self, arm: str, calls: str) -> list[tuple[float, float]]:
        """When each watched call of an arm began and ended."""
        files = (self.folder / arm).glob(calls)
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [(float(began), float(ended)) for began, ended in map(str.split, lines)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Ranks start once for both tests: starting them is what takes time."""
    folder = tmp_path_factory.mktemp("arms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "Scheduler", WatchedScheduler)
        patch.setattr(WatchedScheduler, "turns", [])
        launches = run_cells(folder)
        turns = WatchedScheduler.turns
    num_turns = 2 * NUM_ROUNDS
    return Pair(folder, launches, {CELL: turns[:num_turns], LOADED: turns[num_turns:]})


def run_cells(folder: Path) -> dict[str, Launch]:
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
    plan = PairPlan(
        number=1,
        first="head",
        hash_seed=1,
        core=0,
        timeout_s=120.0,
        uncounted=frozenset({LOADED}),
    )
    with tempfile.TemporaryDirectory() as scratch:
        launches = run_pair(arms, plan, choose=lambda suites: [CELL, LOADED], scratch=Path(scratch))
    for launch in launches.values():
        for cell in (CELL, LOADED):
            run = launch.cells[cell]
            assert (launch.failure, run.outcome, run.reason) == (None, "passed", None)
        assert launch.takes_turns  # plugin and arm speak one protocol
    return launches


def test_no_rank_of_an_arm_works_while_the_other_arm_has_its_turn(pair: Pair) -> None:
    for launch in pair.launches.values():
        run = launch.cells[CELL]
        assert len(run.rounds_s) == NUM_ROUNDS
        assert run.record is not None
        assert run.record["world_size"] == 2
        assert torch.__file__ in launch.loaded.files  # only its ranks load it
    turns = pair.turns[CELL]
    assert [arm for arm, *_ in turns] == ["head", "base", "base", "head", "head", "base"]
    for arm, granted_s, ended_s in turns:
        other = "base" if arm == "head" else "head"
        assert len(list((pair.folder / other).glob("calls-[0-9]*"))) == 2
        assert all(
            ended < granted_s or began > ended_s
            for began, ended in pair.steps_of(other, "calls-[0-9]*")
        )
        own = pair.steps_of(arm, "calls-[0-9]*")
        inside = [began for began, _ in own if granted_s < began < ended_s]
        assert len(inside) >= 2 * 2  # ranks and iterations; after the last turn, counting


def test_launches_count_what_the_gate_asks_for_and_profile_nothing(pair: Pair) -> None:
    for launch in pair.launches.values():
        records = {name: run.record or {} for name, run in launch.cells.items()}
        assert records[CELL]["counts"]["collectives"] == 1
        assert records[CELL]["memory"] is not None
        assert {*records[LOADED]["counts"].values(), records[LOADED]["memory"]} == {None}
        assert records[CELL]["operators"] is records[LOADED]["operators"] is None


def test_no_loader_worker_fills_its_queue_while_the_other_arm_has_its_turn(pair: Pair) -> None:
    num_inside = 0
    assert len(pair.turns[LOADED]) == 12
    for arm, granted_s, ended_s in pair.turns[LOADED]:
        other = "base" if arm == "head" else "head"
        began_there = [began for began, _ in pair.steps_of(other, "calls-loader")]
        assert not [began for began in began_there if granted_s < began < ended_s]
        own = pair.steps_of(arm, "calls-loader")
        num_inside += sum(granted_s < began < ended_s for began, _ in own)
    assert num_inside > 0  # a turn may be too short for a worker to wake up in
