"""What an arm causes belongs to its own turns: parallel work, loader processes, threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_repository import make_shop
from json_schemas import assert_results_valid

pytestmark = pytest.mark.slow

# Two parts that take 1 ms each, one after the other if the threads that do them share a core.
PARALLEL = """
    import os
    from concurrent.futures import ThreadPoolExecutor

    def part(_):
        sum(range(20_000))
        return len(os.sched_getaffinity(0))

    def both(clock):
        with ThreadPoolExecutor(2) as pool:
            cores = min(pool.map(part, range(2)))
        clock.work(0.001 if cores > 1 else 0.002)

    price = both
    num_calls = 0

    def stock(clock):  # one thread, until the third call
        global num_calls
        num_calls += 1
        clock.work(0.001) if num_calls < 3 else both(clock)
"""
SERIAL = """
    def price(clock):
        clock.work(0.002)

    stock = price
"""
TEN_ROUNDS = """
    import pytest
    import shop
    from work_clock import CLOCK

    @pytest.mark.benchmark(timer=CLOCK)
    def test_price(benchmark):
        benchmark.pedantic(shop.price, args=(CLOCK,), rounds=10)

    @pytest.mark.benchmark(timer=CLOCK)
    def test_stock(benchmark):
        benchmark.pedantic(shop.stock, args=(CLOCK,), rounds=10)
"""


def test_parallel_work_that_a_change_makes_serial_fails(tmp_path: Path) -> None:
    repository = make_shop(tmp_path, max_pairs=4)
    repository.write(shop=PARALLEL, benchmarks__test_steps=TEN_ROUNDS)
    repository.commit()
    repository.write(shop=SERIAL)
    repository.commit()

    repository.gate("--perf-base=HEAD~1").expect(
        10, "*::test_price FAIL +100.0 %*", "*::test_stock FAIL +*"
    )


# A step of 1 ms that needs a batch, for which a process of its own works so many milliseconds. It
# makes the next batch as soon as one was taken, and waits before it makes another.
LOADER = """
    import subprocess
    import sys
    import threading
    from pathlib import Path

    MAKE_BATCHES = '''
    import sys, time
    while True:
        end_s = time.process_time() + {milliseconds} / 1e3
        while time.process_time() < end_s:
            pass
        sys.stdout.write("b")
        if not sys.stdin.read(1):
            break
    '''
    loader = None

    def loader_s():
        return int(Path(f"/proc/{{loader.pid}}/schedstat").read_text().split()[0]) / 1e9

    def price(clock):
        global loader
        if loader is None:
            loader = subprocess.Popen(
                [sys.executable, "-S", "-u", "-c", MAKE_BATCHES], bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        before_s = loader_s()
        loader.stdout.read(1)
        clock.work(0.001 + loader_s() - before_s)
        loader.stdin.write(b"a")

    class Busy:
        def __enter__(self):
            self.is_over = False
            threading.Thread(target=self.work).start()

        def __exit__(self, *_):
            self.is_over = True

        def work(self):
            while not self.is_over:
                sum(range(1000))

    def stock(clock):
        clock.work(0.001)
"""
STEPS = """
    import pytest
    import shop
    from work_clock import CLOCK

    @pytest.mark.benchmark(timer=CLOCK)
    def test_price(benchmark):
        benchmark.pedantic(shop.price, args=(CLOCK,), rounds=20)

    @pytest.mark.benchmark(timer=CLOCK)
    def test_stock(benchmark):
        with shop.Busy():
            benchmark.pedantic(shop.stock, args=(CLOCK,), rounds=50)
"""


def test_a_slower_loader_process_fails_and_threads_work_without_the_other_arm(
    tmp_path: Path,
) -> None:
    repository = make_shop(tmp_path, max_pairs=4)
    repository.write(shop=LOADER.format(milliseconds=4), benchmarks__test_steps=STEPS)
    repository.commit()
    repository.write(shop=LOADER.format(milliseconds=8))
    repository.commit()

    repository.gate("--perf-base=HEAD~1").expect(
        10,
        "*::test_price FAIL +*",
        "*::test_stock PASS *",
        "*::test_stock: its threads or loader workers go on, or wait on, in the other arm's *",
    )


# Cells whose times may differ by any factor: what their losses say decides.
LOSSES = """
    import pytest
    import torch
    from torch.nn.functional import mse_loss
    from torch.utils.data import TensorDataset

    import model
    import shop
    from perfsuite import Recipe, Workload

    def workload(loss):
        return Workload(
            name="tiny",
            build_model=model.build,
            build_dataset=lambda split: TensorDataset(*torch.randn(2, 64, 4)),
            loss=loss,
            build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            micro_batch_size=8,
            metric="none",
        )

    @pytest.mark.perf(tolerance="99%", limit="1000%")
    def test_kept(train_benchmark):
        train_benchmark(workload(mse_loss), Recipe(), rounds=5)

    @pytest.mark.perf(tolerance="99%", limit="1000%")
    def test_changed(train_benchmark):
        loss = lambda output, target: shop.scale * mse_loss(output, target)
        train_benchmark(workload(loss), Recipe(), rounds=5)

    @pytest.mark.perf(tolerance="99%", limit="1000%")
    def test_plain(benchmark):
        benchmark(sum, range(1000))
"""


def test_a_change_of_the_mathematics_fails_where_its_base_asks_for_that(tmp_path: Path) -> None:
    repository = make_shop(tmp_path, max_pairs=3)
    settings = tmp_path / "pytest.ini"
    told = settings.read_text()
    settings.write_text(f"{told}perf_numerics_change = fail\n")
    repository.write(
        shop="scale = 1.0",
        model="import torch\ndef build(): return torch.nn.Linear(4, 4)",
        benchmarks__test_steps=LOSSES,
    )
    repository.commit()
    settings.write_text(told)
    repository.write(shop="scale = 0.5")
    repository.commit()

    gated = repository.gate("--perf-base=HEAD~1", "--perf-numerics=off")

    gated.expect(
        10,
        "limits: head's perf_numerics_change of tell is looser than fail, where "
        "--perf-numerics-change=tell would hold for both sides (*); the stricter holds; *",
        "*::test_changed FAIL *",
        "*::test_kept PASS *",
        "*::test_plain INCONCLUSIVE *",
        "*::test_changed: mathematics: changed: loss at step 1 * -> *",
    )
    assert records_of(tmp_path) == {
        "test_kept": ("PASS", "pairs", "same bits"),
        "test_changed": ("FAIL", "numerics", "changed"),
        "test_plain": ("INCONCLUSIVE", "numerics", "cannot be told"),
    }


def records_of(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Word, by and the change of the mathematics of each cell of the session's own run."""
    assert_results_valid(folder / "results")
    run = json.loads((folder / "results" / "run.json").read_text())
    verdicts = {one["name"]: one["extra_info"]["perfsuite"]["verdict"] for one in run["benchmarks"]}
    return {
        name: (one["word"], one["by"], one["numerics_change"].partition(":")[0])
        for name, one in verdicts.items()
    }
