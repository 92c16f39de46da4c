"""What measuring costs: against a hand-written loop, and against starting ranks with torchrun.

Both sides alternate in one run, so the machine's drift meets both; the ratios are printed.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# Short rounds, many pairs: what else runs on the machine then meets both sides of a pair alike.
NUM_PAIRS = 600
NUM_STEPS = 4

pytestmark = [pytest.mark.perf(matrix="full"), pytest.mark.usefixtures("on_a_cpu")]


def alternate_with_a_hand_written_loop(num_pairs: int, num_steps: int) -> list[tuple[float, float]]:
    """Return (ours, by hand) in seconds for each pair of rounds of the same training step."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader

    from perfsuite import Recipe
    from perfsuite.ranks.messages import RoundTimes
    from perfsuite.worker.measure.iterations import run_iterations
    from perfsuite.worker.measure.rounds import measure_rounds
    from perfsuite.worker.measure.stages import StageClock
    from perfsuite.worker.training.loaders import EpochBatches
    from perfsuite.worker.training.step import train_step
    from perfsuite.worker.training.trainer import build_trainer
    from perfsuite.worker.workloads.lenet import lenet_digits

    device = torch.device("cpu")
    workload, recipe = lenet_digits(), Recipe()
    trainer = build_trainer(workload, recipe, device=device, seed=0)
    batches = EpochBatches(workload, recipe, "train", (0, 1), seed=0)

    # The same weights in the same memory: two models of one process differ by a few per cent.
    model, optimizer = trainer.model, trainer.optimizer
    dataset = workload.build_dataset("train")
    assert dataset is not None
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    epochs = itertools.chain.from_iterable(itertools.repeat(loader))

    def by_hand() -> None:
        inputs, target = next(epochs)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), target)
        loss.backward()
        optimizer.step()

    rounds: list[RoundTimes] = []

    def iterate(stage: Any) -> None:
        # ours, by hand, by hand, ours, ...
        if len(rounds) % 4 in (0, 3):
            train_step(trainer, batches, stage)
        else:
            by_hand()

    asked = measure_rounds(
        rounds,
        num_rounds=2 * num_pairs,
        num_iterations=num_steps,
        stages=StageClock(device),
        start_together=lambda: None,
        synchronize=lambda: None,
        after_round=lambda: None,
    )
    run_iterations(asked, iterate)
    times_s = [times.duration_s for times in rounds]
    pairs = zip(times_s[::2], times_s[1::2], strict=True)
    return [pair if number % 2 == 0 else pair[::-1] for number, pair in enumerate(pairs)]


def test_against_a_hand_written_loop(rank_group: Any, capsys: Any) -> None:
    (pairs,) = rank_group(1, alternate_with_a_hand_written_loop, NUM_PAIRS, NUM_STEPS)

    ratios = [ours / by_hand for ours, by_hand in pairs]
    with capsys.disabled():
        print(
            f"\n  lenet-digits, ours / hand-written: median {statistics.median(ratios):.4f}, "
            f"from {min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} pairs"
        )
    assert 0.99 <= statistics.median(ratios) <= 1.02


def time_marked_steps(num_pairs: int, num_steps: int, work_s: float) -> list[tuple[float, float]]:
    """Return seconds of a step with all its marks and some work: in a measured loop, and alone."""
    import tempfile

    import torch

    import perfsuite
    from perfsuite.ranks.messages import RoundTimes, UserCode
    from perfsuite.ranks.progress import Board
    from perfsuite.worker.jobs.user_code import UserLoop
    from perfsuite.worker.measure.clock import collector_off
    from perfsuite.worker.measure.rounds import measure_rounds
    from perfsuite.worker.measure.stages import StageClock

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    loss = torch.ones(())
    board = Board(Path(tempfile.mkdtemp()) / "board", 1)
    writer = board.writer(0)

    def step() -> None:
        end_s = time.perf_counter() + work_s
        while time.perf_counter() < end_s:
            pass
        for name in ("load", "forward", "backward"):
            with perfsuite.stage(name):
                pass
        perfsuite.log_loss(loss)
        with perfsuite.stage("optimizer"):
            optimizer.step()

    def train() -> None:
        while True:
            step()

    def in_a_loop_s() -> float:
        rounds: list[RoundTimes] = []
        asked = measure_rounds(
            rounds,
            num_rounds=1,
            num_iterations=num_steps,
            stages=StageClock(torch.device("cpu"), on_enter=writer.enter_stage),
            start_together=lambda: None,
            synchronize=lambda: None,
            after_round=lambda: None,
            most_spans=10_000,
        )
        code = UserCode(name="bare", function=b"", kind="loop", num_steps=num_steps)
        UserLoop(code, train, None).run(asked, writer.begin_step)
        return rounds[0].duration_s / num_steps

    def alone_s() -> float:
        with collector_off():
            began_s = time.perf_counter()
            for _ in range(num_steps):
                step()
            return (time.perf_counter() - began_s) / num_steps

    # Ours, alone, alone, ours, ...
    pairs = []
    for number in range(num_pairs):
        sides = (in_a_loop_s, alone_s) if number % 2 == 0 else (alone_s, in_a_loop_s)
        times_s = {side: side() for side in sides}
        pairs.append((times_s[in_a_loop_s], times_s[alone_s]))
    return pairs


def test_the_marks_and_borders_of_a_loop(rank_group: Any, capsys: Any) -> None:
    (pairs,) = rank_group(1, time_marked_steps, 200, 50, 0.0)

    cost_s = statistics.median(measured_s - alone_s for measured_s, alone_s in pairs)
    with capsys.disabled():
        print(f"\n  a step's border, four stages and loss: {1e6 * cost_s:.1f} us")
    assert cost_s < 0.01 * 0.005  # of a step of 5 ms


def test_a_measured_loop_of_5_ms_steps(rank_group: Any, capsys: Any) -> None:
    (pairs,) = rank_group(1, time_marked_steps, 100, 8, 0.005)

    ratios = [measured_s / alone_s for measured_s, alone_s in pairs]
    with capsys.disabled():
        print(
            f"\n  a step of 5 ms, measured / alone: median {statistics.median(ratios):.5f}, "
            f"from {min(ratios):.3f} to {max(ratios):.3f} over {len(ratios)} pairs"
        )
    assert statistics.median(ratios) <= 1.01


TORCHRUN_SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
dist.destroy_process_group()
"""


def one_all_reduce() -> float:
    """Return the sum of one 1 a rank."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def test_against_torchrun(rank_group: Any, tmp_path: Path, capsys: Any) -> None:
    script = tmp_path / "one_all_reduce.py"
    script.write_text(TORCHRUN_SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    rank_group(2, one_all_reduce)  # the server that forks the ranks starts once a session

    ours_s, torchrun_s = [], []
    for _ in range(5):
        began_s = time.perf_counter()
        assert rank_group(2, one_all_reduce) == [2.0, 2.0]
        ours_s.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        subprocess.run([*torchrun, "--nproc-per-node=2", str(script)], check=True)
        torchrun_s.append(time.perf_counter() - began_s)

    ratio = statistics.median(torchrun_s) / statistics.median(ours_s)
    with capsys.disabled():
        print(
            f"\n  2 ranks and one all_reduce: {statistics.median(ours_s):.3f} s, by torchrun "
            f"{statistics.median(torchrun_s):.2f} s, {ratio:.0f} times as long"
        )
    assert ratio >= 20
