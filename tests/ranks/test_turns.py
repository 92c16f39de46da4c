"""Ranks of two arms take turns: a pair of real two-rank cells; every step is watched."""

from __future__ import annotations

import fcntl
import resource
import socket
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from perfsuite.gate.arms import channel
from perfsuite.gate.arms.arm import Arm, Launch, PairPlan
from perfsuite.gate.arms.launch import run_pair
from perfsuite.gate.arms.turns import Scheduler
from perfsuite.ranks.messages import TurnChannel
from perfsuite.ranks.turns import Turns

pytestmark = pytest.mark.slow

CELL = "test_ranks.py::test_ranks"
LOADED = "test_ranks.py::test_loader"
ACCELERATED = "test_ranks.py::test_accelerated"
CELLS = (CELL, LOADED, ACCELERATED)
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

def test_accelerated(train_benchmark):
    train_benchmark(WATCHED, Recipe(parallel="ddp:2"), rounds={NUM_ROUNDS - 1}, iterations=2)
"""
# Its ranks are those of an accelerator under NCCL, as far as a CPU under gloo can stand in for it.
# Each collective of Python's is one on the device.
STAND_IN = f"""
import os, time
from perfsuite.ranks.messages import RunCell

CALLS = os.path.join(os.path.dirname(__file__), "calls-device")

def serve(start, pipe):
    from perfsuite.worker import main
    job = start.request.job
    if isinstance(job, RunCell) and job.plan.num_rounds == {NUM_ROUNDS - 1}:
        assignment = start.assignment._replace(backend="nccl")
        start = start._replace(assignment=assignment)
        stand_in()
    main.serve(start, pipe)

def stand_in():
    import torch.distributed as dist
    from perfsuite.worker.jobs import cell
    from perfsuite.worker.measure import rounds
    init = dist.init_process_group
    def init_process_group(backend, **options):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        init("gloo", **(options | {{"device_id": None}}))
    dist.init_process_group = init_process_group
    dist.barrier, dist.all_reduce = watched(dist.barrier), watched(dist.all_reduce)
    rounds._LEAST_WARM_UP_S, rounds._STEADY = 0.0, float("inf")  # its clock need not rise
    cell.is_accelerator = lambda device: True
    cell.memory_stats = lambda device: {{"num_alloc_retries": 0}}

def watched(collective):
    def call(*arguments, group=None, **options):
        if collective.__name__ == "barrier" and arguments:
            (group,), arguments = arguments, ()
        began = time.monotonic()
        result = collective(*arguments, group=group, **options)
        if group is None:
            with open(f"{{CALLS}}-{{os.getpid()}}", "a") as file:
                file.write(f"{{began}} {{time.monotonic()}}\\n")
        return result
    return call
"""
CONFTEST = """
from perfsuite.ranks.messages import GroupPolicy

defaults = GroupPolicy._field_defaults | {"entry": "stand_in:serve"}
GroupPolicy.__new__.__defaults__ = tuple(defaults.values())
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


class RisingClock:
    """Of a GPU that is faster at the end of each turn."""

    def __init__(self) -> None:
        self._now_mhz = 1000.0

    def clocks_mhz(self) -> list[float]:
        self._now_mhz += 1.0
        return [self._now_mhz]


@dataclass(frozen=True)
class Pair:
    """One pair of launches of all cells, and the turns that they took.

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
        patch.setattr(channel, "open_clocks", lambda: nullcontext(RisingClock().clocks_mhz))
        launches = run_cells(folder)
        turns = WatchedScheduler.turns
    of_cell, of_loaded = 2 * NUM_ROUNDS, 2 * NUM_ROUNDS + 12
    parts = turns[:of_cell], turns[of_cell:of_loaded], turns[of_loaded:]
    return Pair(folder, launches, dict(zip(CELLS, parts, strict=True)))


def run_cells(folder: Path) -> dict[str, Launch]:
    arms = []
    for name in ("base", "head"):
        (folder / name).mkdir()
        (folder / name / "test_ranks.py").write_text(SUITE)
        (folder / name / "stand_in.py").write_text(STAND_IN)
        (folder / name / "conftest.py").write_text(CONFTEST)
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
        names=CELLS,
        first="head",
        hash_seed=1,
        core=0,
        timeout_s=120.0,
        uncounted=frozenset({LOADED, ACCELERATED}),
    )
    with tempfile.TemporaryDirectory() as scratch:
        launches = run_pair(arms, plan, scratch=Path(scratch))
    for launch in launches.values():
        for cell in CELLS:
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
        assert len(list((pair.folder / other).glob("calls-[0-9]*"))) == 2 * 2  # of two cells
        assert all(
            ended < granted_s or began > ended_s
            for began, ended in pair.steps_of(other, "calls-[0-9]*")
        )
        own = pair.steps_of(arm, "calls-[0-9]*")
        inside = [began for began, _ in own if granted_s < began < ended_s]
        assert len(inside) >= 2 * 2  # ranks and iterations; after the last turn, counting


def test_the_clocks_of_an_arm_are_those_at_the_ends_of_its_own_turns(pair: Pair) -> None:
    # head base base head head base
    runs = {arm: launch.cells[CELL] for arm, launch in pair.launches.items()}

    (of_head,), (of_base,) = runs["head"].clocks_mhz, runs["base"].clocks_mhz
    assert of_head == pytest.approx((1001 + 1004 + 1005) / 3)
    assert of_base == pytest.approx((1002 + 1003 + 1006) / 3)


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


def test_ranks_on_an_accelerator_prepare_and_measure_and_wait_beside_no_turn_of_the_other_arm(
    pair: Pair,
) -> None:
    turns = pair.turns[ACCELERATED]
    # What each prepares, its rounds, and the rounds of its stages.
    num_turns = 1 + (NUM_ROUNDS - 1) + 3
    order = [arm for arm, *_ in turns]
    first, second = order[:2]
    assert order == [first, second, *[first, second, second, first] * 3][: 2 * num_turns]
    for arm, granted_s, ended_s in turns:
        other = "base" if arm == "head" else "head"
        for calls in ("calls-[0-9]*", "calls-device-*"):
            own, others = pair.steps_of(arm, calls), pair.steps_of(other, calls)
            assert any(granted_s < began < ended_s for began, _ in own)
            assert not [one for one in others if one[0] < ended_s and granted_s < one[1]]


def test_a_rank_with_more_open_files_than_select_takes_waits_for_its_turn(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, before[0]), before[1]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "gate"))
        listener.listen()
        turns = Turns(TurnChannel(path=str(tmp_path / "gate"), arm="head"))
        own = turns._socket
        turns._socket = socket.socket(fileno=fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, 1024))
        gate, _ = listener.accept()
        with gate, own, turns._socket:
            gate.sendall(b"turn\n")
            try:
                with turns.take():
                    pass
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)

            assert gate.recv(1 << 10).splitlines()[-1] == b'{"kind": "done"}'
