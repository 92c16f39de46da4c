"""Time that the typical round does not show, and what a re-run of the same two trees keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gated_repository import (
    NOISY_SHOP,
    ONE_CELL,
    TWO_CELLS,
    Gated,
    Repository,
    make_shop,
)
from json_schemas import assert_results_valid

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_steps.py::test_stock"
# Every eighth call takes four times as long, as where a loader refills its queue.
STALLING_SHOP = """
    from itertools import count

    numbers = count(1)

    def price(clock):
        clock.work(0.001 if next(numbers) % 8 else 0.004)
"""


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository whose first commit has one cell, and whose second changes nothing."""
    return make_shop(tmp_path / "shop")


def test_a_step_that_stalls_now_and_then_does_not_pass(shop: Repository) -> None:
    shop.write(benchmarks__test_steps=ONE_CELL.replace("rounds=5", "rounds=16"))
    shop.commit()
    shop.write(shop=STALLING_SHOP)

    gated = shop.gate("--perf-max-pairs=3", "--benchmark-json=run.json")

    gated.expect(
        11,
        f"{PRICE} INCONCLUSIVE +0.0 % * 3",
        f"{PRICE}: typical +0.0 %, mean +37.5 %: stalls; *",
    )
    run = json.loads((shop.path / "run.json").read_text())
    verdict = run["benchmarks"][0]["extra_info"]["perfsuite"]["verdict"]
    assert verdict["ratio"] == pytest.approx(1.0, abs=0.001)
    assert verdict["mean_ratio"] == pytest.approx(1.375, abs=0.001)


# One cell is slower, and of the other each launch takes another time.
SLOW_AND_NOISY_SHOP = NOISY_SHOP.replace("clock.work(0.001)", "clock.work(SECONDS)").replace(
    "clock.work(SECONDS)", "clock.work(0.003)", 1
)


def test_a_re_run_keeps_what_failed_and_goes_on_from_what_was_inconclusive(
    shop: Repository, tmp_path: Path
) -> None:
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()
    shop.write(shop=SLOW_AND_NOISY_SHOP)
    (tmp_path / "launches").mkdir()

    def gate() -> Gated:
        return shop.gate("--perf-max-pairs=3", LAUNCHES=str(tmp_path / "launches"))

    gate().expect(
        10,
        f"{PRICE} FAIL +200.0 % * 3",
        f"{STOCK} INCONCLUSIVE * 3",
    )
    assert_results_valid(shop.path / "results")

    shop.git("commit", "--quiet", "--all", "--message", "the same code")
    rerun = gate()

    rerun.expect(
        10,
        "2 cells go on from what *results/pairs.json has of these two trees, with at most 3 *",
        f"{PRICE} FAIL +200.0 % * 3",
        f"{STOCK} INCONCLUSIVE * 6",
        f"{PRICE}: an earlier session of these two trees has failed it*",
    )
