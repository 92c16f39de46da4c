"""What a change says of its own judging counts once, where it is reviewed, and is always shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_repository import SHOP, SLOW_SHOP, TWO_CELLS, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_steps.py::test_stock"
SLOWER_SHOP = SHOP.replace("0.001", "0.0015")


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository with two cells."""
    shop = make_shop(tmp_path / "shop")
    shop.write(benchmarks__test_steps=TWO_CELLS)
    shop.commit()
    return shop


def test_the_merge_of_a_change_spends_its_exceptions(shop: Repository) -> None:
    shop.accept("*", kind="slowdown", ratio=3.5)
    shop.write(shop=SLOW_SHOP)
    shop.commit("slower, and reviewed")
    shop.write(shop=SLOW_SHOP.replace("0.003", "0.009"))

    gated = shop.gate()

    gated.expect(
        10,
        f"{PRICE} FAIL +200.0 % *",
        f"{PRICE}: what was accepted of it is spent: the base has the entry too; *",
    )
    assert "accepted: " not in gated.output


def test_a_change_loosens_what_judges_it_only_where_that_is_reviewed(shop: Repository) -> None:
    with (shop.path / "pytest.ini").open("a") as ini:
        ini.write("perf_tolerance = 60%\nperf_limit = 90%\n")
    marker = "@pytest.mark.perf(tolerance='70%', limit='90%', floor='1s')\n    @"
    shop.write(benchmarks__test_steps=TWO_CELLS.replace("@", marker, 1), shop=SLOWER_SHOP)

    gated = shop.gate()

    gated.expect(
        10,
        "limits: head's limit of 90.0 % is looser than 5.0 % (*test_price, *test_stock); head's "
        "tolerance of 70.0 % is looser than 2.0 % (*test_price); head's floor of 1.00 s is looser "
        "than 0 s (*test_price); head's tolerance of 60.0 % is looser than 2.0 % (*test_stock); "
        "the stricter holds; if that is meant, say so with 'perfsuite baseline accept'",
        f"{PRICE} FAIL +50.0 % *",
        f"{STOCK} FAIL +50.0 % *",
    )

    shop.accept("*", kind="limit", limit="90%", tolerance="65%")

    gated = shop.gate()

    gated.expect(
        0,
        "limits: head's tolerance of 70.0 % is looser than 65.0 % (*test_price); head's floor *",
        f"{PRICE} PASS +50.0 % *",
        f"{STOCK} PASS +50.0 % *",
        "accepted: every cell may be judged by limit 90%, tolerance 65% until 9999-12-31: reviewed",
    )


def test_a_limit_on_the_command_line_holds_for_both_sides(shop: Repository) -> None:
    shop.write(shop=SLOWER_SHOP)

    gated = shop.gate("--perf-limit=90%", "--perf-tolerance=60%")

    gated.expect(0, f"{PRICE} PASS +50.0 % *")
    assert "limits: " not in gated.output
