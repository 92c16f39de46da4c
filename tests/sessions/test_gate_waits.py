"""Waits of threads and loader workers, which go on while the other arm has its turn."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_repository import make_shop

pytestmark = pytest.mark.slow

READ = """
    import time

    def read():
        time.sleep({seconds})
"""
CELLS = """
    import queue
    import threading
    import time

    import pytest
    import torch
    from torch.utils.data import DataLoader, Dataset

    from read import read

    # The clock is the machine's, and the change makes a batch four times as slow.
    pytestmark = pytest.mark.perf(tolerance="30%", limit="60%")

    class Items(Dataset):
        def __init__(self, wait):
            self.wait = wait

        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            self.wait()
            return torch.ones(4)

    def from_a_thread():
        batches = queue.Queue(maxsize=8)

        def fill():
            while True:
                read()
                batches.put(torch.ones(4))

        threading.Thread(target=fill, daemon=True).start()
        return iter(batches.get, None)

    def take(batches):
        next(batches)
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < 0.005:
            pass

    # One that never waits is told by its turns, whatever this machine makes of its time.
    unmoved = pytest.param(int, marks=pytest.mark.perf(tolerance="99%", limit="300%"))

    @pytest.mark.parametrize("wait", [read, unmoved])
    def test_workers(step_benchmark, wait):
        def build_step():
            batches = iter(DataLoader(Items(wait), batch_size=None, num_workers=1))
            return lambda: take(batches)

        step_benchmark(build_step)

    def test_thread(benchmark):
        benchmark(take, from_a_thread())
"""


def test_a_wait_that_another_thread_or_process_began_is_timed(tmp_path: Path) -> None:
    # How long threads wait varies beside other work: three pairs may not show the change.
    shop = make_shop(tmp_path / "shop", max_pairs=5)
    shop.write(benchmarks__test_steps=CELLS, read=READ.format(seconds=0.003))
    shop.commit()
    shop.write(read=READ.format(seconds=0.02))

    gated = shop.gate()

    gated.expect(
        10,
        "*::test_thread FAIL +*",
        "*::test_workers[int] PASS *",
        "*::test_workers[read] FAIL +*",
    )
    reason = "its threads or loader workers go on, or wait on, in the other arm's turns"
    steps = "benchmarks/test_steps.py::"
    told = {
        line.partition(": ")[0]
        for line in gated.output.splitlines()
        if line.startswith(steps) and reason in line
    }
    assert told == {f"{steps}test_thread", f"{steps}test_workers[read]"}
