"""The gate on training loops of a user's own: two arms that take turns at step borders.

Times may differ by any factor that a machine makes: what decides is two hundred times the work.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_repository import make_shop

pytestmark = pytest.mark.slow

MODEL = """
    import torch

    NUM_STEPS = 40

    def build():
        return torch.nn.Linear(4, 4)

    def think():
        sum(range(20_000))
"""
CELLS = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    import model
    import perfsuite

    pytestmark = pytest.mark.perf(tolerance="99%", limit="300%")

    def train():
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        network = model.build()
        if dist.is_initialized():
            network = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

        for _ in range(model.NUM_STEPS):
            with perfsuite.stage("forward"):
                model.think()
                loss = network(torch.ones(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            perfsuite.log_loss(loss)
            optimizer.step()

    def test_loop(loop_benchmark):
        loop_benchmark(train, ranks=2, steps=20, warmup=3)

    def test_ends(loop_benchmark):
        loop_benchmark(train, steps=36, warmup=3)
"""


def test_a_slower_loop_fails_and_its_twin_passes(tmp_path: Path) -> None:
    repository = make_shop(tmp_path)
    repository.write(model=MODEL, benchmarks__test_steps=CELLS)
    repository.commit()
    repository.write(model=f"{MODEL}\n    # the same\n")
    repository.commit()

    twin = repository.gate("--perf-base=HEAD~1")

    twin.expect(0, "*::test_ends PASS *", "*::test_loop PASS *")
    assert set(verdicts_of(tmp_path).values()) == {("PASS", "pairs", "same bits", None)}

    slower = MODEL.replace("20_000", "4_000_000").replace("40", "26")
    repository.write(model=slower)
    repository.commit()

    gated = repository.gate("--perf-base=HEAD~1")

    gated.expect(
        10,
        "*::test_ends INVALID*",
        "*::test_loop FAIL +*",
        "*::test_ends: the loop ended by itself, after * rounds in the base and * in head, so that "
        "neither times nor counts compare; let both take the steps that the test asks for*",
        "*::test_loop: *moved most: forward *",
    )


def verdicts_of(folder: Path) -> dict[str, tuple[str, str, str, object]]:
    """Word, by, the change of the mathematics and the recipe of each cell."""
    run = json.loads((folder / "results" / "run.json").read_text())
    records = {one["name"]: one["extra_info"]["perfsuite"] for one in run["benchmarks"]}
    return {
        name: (
            one["verdict"]["word"],
            one["verdict"]["by"],
            one["verdict"]["numerics_change"],
            one["recipe"],
        )
        for name, one in records.items()
    }
