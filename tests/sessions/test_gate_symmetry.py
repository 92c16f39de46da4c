"""Code under test that both arms share, or that one of them lacks: compiled, ignored, generated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gated_repository import SHOP, Repository, make_shop

PRICE = "benchmarks/test_steps.py::test_price"

# The work that the clock counts is what the library says.
LIBRARY = "double price_s(void) {{ return {seconds}; }}\n"
BUILD = "cc -shared -fPIC -o libprice.so price.c"
BY_CTYPES = """
    import ctypes, os, pathlib

    OWN = pathlib.Path(__file__).with_name("libprice.so")
    LIBRARY = ctypes.CDLL(os.environ.get("SHOP_LIBRARY", OWN))
    LIBRARY.price_s.restype = ctypes.c_double

    def price(clock):
        clock.work(LIBRARY.price_s())
"""


@pytest.fixture
def shop(tmp_path: Path) -> Repository:
    return make_shop(tmp_path / "shop")


def write_library(shop: Repository, *, seconds: float) -> None:
    (shop.path / "price.c").write_text(LIBRARY.format(seconds=seconds))
    subprocess.run(BUILD.split(), cwd=shop.path, check=True)


def test_a_library_that_both_arms_load_from_head_proves_nothing(shop: Repository) -> None:
    shop.write(shop=BY_CTYPES)
    (shop.path / ".gitignore").write_text("*.so\n")
    write_library(shop, seconds=0.001)
    shop.commit()
    write_library(shop, seconds=0.0013)

    gated = shop.gate(SHOP_LIBRARY=str(shop.path / "libprice.so"))

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base arm loaded {shop.path}/libprice.so, which is head's; *",
    )


SPEEDUPS = """
    try:
        from _speedups import price
    except ImportError:
        def price(clock):
            clock.work(0.004)
"""


def test_a_module_that_git_ignores_and_head_alone_has_is_named(shop: Repository) -> None:
    shop.write(shop=SPEEDUPS, _speedups=SHOP)
    (shop.path / ".gitignore").write_text("_speedups*\n")
    shop.commit()
    (shop.path / "shop.py").write_text((shop.path / "shop.py").read_text() + "# changed\n")

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the head arm loaded _speedups.py, which git does not track and the base's tree "
        "does not have; *--perf-base-build*perf_share*",
    )


def test_a_changed_dependency_that_the_base_loads_proves_nothing(shop: Repository) -> None:
    lists = shop.path / "requirements.txt", shop.path / "requirements-lint.txt"
    for file in lists:
        file.write_text("pytest\n")
    shop.commit()
    lists[0].write_text("pytest\npytest_benchmark>=5\n")
    lists[1].write_text("pytest\nno-such-linter\n")

    gated = shop.gate()

    gated.expect(0, f"{PRICE} PASS *")

    shop.commit()
    lists[0].write_text("pytest\npytest-benchmark>=4\n")

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: requirements.txt changes pytest-benchmark, which the base loads as it is "
        "installed for head; *--perf-base-python*",
    )


def test_what_is_new_in_head_is_its_own(shop: Repository) -> None:
    shop.write(shop="from pricing import price\n", pricing=SHOP)

    gated = shop.gate()

    gated.expect(0, f"{PRICE} PASS *")
