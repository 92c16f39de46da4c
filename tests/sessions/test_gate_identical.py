"""Cells that no change touches pass without a pair, in whole sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_repository import ONE_CELL, SHOP, SLOW_SHOP, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"
STOCK = "benchmarks/test_stock.py::test_stock"
# Each process that imports it leaves a trace.
TRACED_SHOP = f"""
    import os
    import tempfile
    tempfile.mkdtemp(dir=os.environ["LAUNCHES"])
{SHOP}"""
STOCK_CELL = ONE_CELL.replace("shop", "depot").replace("price", "stock")


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository on main with a cell."""
    return make_shop(tmp_path / "shop")


def test_a_change_of_documentation_alone_launches_nothing(shop: Repository, tmp_path: Path) -> None:
    (tmp_path / "launches").mkdir()
    environment = {"LAUNCHES": str(tmp_path / "launches")}
    shop.write(shop=TRACED_SHOP)
    shop.commit()
    (shop.path / "README.md").write_text("new")
    (shop.path / "docs").mkdir()
    (shop.path / "docs" / "conf.py").touch()
    shop.commit()

    gated = shop.gate(**environment)
    num_processes = len(list((tmp_path / "launches").iterdir()))
    judged = shop.gate("--perf-identical=judge", **environment)

    gated.expect(
        0,
        f"{PRICE} PASS",
        "1 cell: identical: only documentation differs from the base: README.md, docs/conf.py",
    )
    # The session itself, and what asked head for its cells.
    assert num_processes == 2
    judged.expect(0, "pair 1: *", f"{PRICE} PASS *", "1 cell: pairs against the first parent *")


def test_a_changed_module_has_only_those_cells_judged_that_load_it(shop: Repository) -> None:
    shop.write(benchmarks__test_stock=STOCK_CELL, depot=SHOP)
    shop.commit()
    shop.write(shop=f"{SHOP}    # more")

    gated = shop.gate()

    gated.expect(
        0,
        f"{PRICE} PASS *",
        f"{STOCK} PASS",
        "1 cell: pairs against HEAD, *",
        "1 cell: identical: it loads none of the changed modules: shop.py",
    )


def test_where_no_cell_loads_what_is_uncommitted_the_commit_itself_is_judged(
    shop: Repository,
) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    shop.write(release=SHOP)

    gated = shop.gate()

    gated.expect(
        10,
        "base: the first parent of HEAD, *; nothing that a cell loads differs from HEAD",
        f"{PRICE} FAIL +200.0 % *",
    )


def test_a_change_that_is_no_module_reaches_every_cell(shop: Repository) -> None:
    seconds = SHOP.replace("0.001", "float(open('seconds.txt').read())")
    (shop.path / "seconds.txt").write_text("0.001")
    shop.write(shop=seconds)
    shop.commit()
    (shop.path / "seconds.txt").write_text("0.003")

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")
