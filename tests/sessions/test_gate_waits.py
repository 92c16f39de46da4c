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

    # The clock is the machine's, and the change makes a batch three times as slow.
    pytestmark = pytest.mark.perf(tolerance="30%", limit="60%")

    class Items(Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            read()
            return torch.ones(4)

    def from_workers():
        return iter(DataLoader(Items(), batch_size=None, num_workers=1))

    def from_a_thread():
        batches = queue.Queue(maxsize=8)

        def fill():
            while True:
                read()
                batches.put(torch.ones(4))

        threading.Thread(target=fill, daemon=True).start()
        return iter(batches.get, None)

    SOURCES = [from_workers, from_a_thread]

    def take(batches):
        next(batches)
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < 0.005:
            pass

    @pytest.mark.parametrize("source", SOURCES)
    def test_step(step_benchmark, source):
        def build_step():
            batches = source()
            return lambda: take(batches)

        step_benchmark(build_step)

    @pytest.mark.parametrize("source", SOURCES)
    def test_plain(benchmark, source):
        benchmark(take, source())
"""


def test_a_wait_that_another_thread_or_process_began_is_timed(tmp_path: Path) -> None:
    shop = make_shop(tmp_path / "shop", max_pairs=12)
    shop.write(benchmarks__test_steps=CELLS, read=READ.format(seconds=0.003))
    shop.commit()
    shop.write(read=READ.format(seconds=0.015))

    gated = shop.gate()

    cells = [
        f"*::test_{kind}[from_{source}]"
        for kind in ("plain", "step")
        for source in ("a_thread", "workers")
    ]
    gated.expect(
        10,
        *(f"{cell} FAIL *" for cell in cells),
        "*what its threads or loader workers wait for goes on in the other arm's turn: *",
    )
