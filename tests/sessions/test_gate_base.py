"""Which commit and which stored runs a change is compared with, in whole sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from gated_repository import SLOW_SHOP, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    """A repository on main whose first commit has one cell, and whose second changes nothing."""
    return make_shop(tmp_path / "shop")


def test_what_sessions_leave_on_main_compares_no_commit_with_itself(shop: Repository) -> None:
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    shop.write(env__lib__site=SLOW_SHOP)
    (shop.path / "env" / "pyvenv.cfg").touch()
    (shop.path / "junit.xml").touch()
    (shop.path / "README.md").touch()

    gated = shop.gate()

    gated.expect(
        10,
        "base: the first parent of HEAD, *; nothing that a cell loads differs from HEAD",
        f"{PRICE} FAIL +200.0 % *",
    )


def test_a_change_is_compared_with_the_branch_that_it_goes_to(shop: Repository) -> None:
    shop.git("branch", "release")
    shop.write(shop=SLOW_SHOP)
    shop.commit()
    shop.git("switch", "--quiet", "--create", "fix")
    shop.commit()

    gated = shop.gate(GITHUB_BASE_REF="release")

    gated.expect(10, "base: the merge base with release, *", f"{PRICE} FAIL +200.0 % *")
