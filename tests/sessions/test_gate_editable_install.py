"""Head installed in editable mode, by pip, where both arms run: whose code does the base import?"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from gated_repository import CLOCK, ONE_CELL, SHOP, SLOW_SHOP, Repository

PRICE = "benchmarks/test_steps.py::test_price"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter of its own that has all that this one has, so that pip may install into it."""
    folder = tmp_path / "venv"
    venv.create(folder)
    ours = sysconfig.get_path("purelib")
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # As a site folder, for packages that are installed in editable mode themselves.
    (site_packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return folder / "bin" / "python"


def make_installed_shop(path: Path, python: Path, *, sources: str) -> Repository:
    """Return a repository, fast at its base and slow in head, whose package pip has installed.

    Args:
        path: Its folder.
        python: Where its package is installed in editable mode.
        sources: The folder of its package.
    """
    shop = Repository(path, python=str(python))
    shop.write(benchmarks__work_clock=CLOCK, benchmarks__test_steps=ONE_CELL)
    shop.write(**{f"{sources}__shop": SHOP})
    (path / "pyproject.toml").write_text(
        '[project]\nname = "shop"\nversion = "1"\n'
        f'[tool.setuptools]\npackage-dir = {{"" = "{sources}"}}\npy-modules = ["shop"]\n'
    )
    (path / "pytest.ini").write_text("[pytest]\nperf_gate = on\n")
    shop.git("init", "--quiet", "--initial-branch=main")
    shop.commit()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *offline, "--editable", str(path)], check=True)
    shop.write(**{f"{sources}__shop": SLOW_SHOP})
    return shop


def test_an_arm_imports_its_own_src_before_what_is_installed_in_editable_mode(
    tmp_path: Path, python: Path
) -> None:
    shop = make_installed_shop(tmp_path / "shop", python, sources="src")

    gated = shop.gate()

    gated.expect(10, f"{PRICE} FAIL +200.0 % *")


def test_where_only_the_editable_install_finds_the_code_the_cells_are_invalid(
    tmp_path: Path, python: Path
) -> None:
    shop = make_installed_shop(tmp_path / "shop", python, sources="lib")

    gated = shop.gate()

    gated.expect(
        12,
        f"{PRICE} INVALID",
        f"{PRICE}: the base arm loaded {shop.path}/lib/shop.py, which is head's; is it installed "
        "in editable mode, or behind a link with an absolute path? Name its folder in pytest's "
        "pythonpath or in PYTHONPATH, or *",
    )
