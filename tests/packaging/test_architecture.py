"""What holds across the package: layers, cold imports, examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "perfsuite"

# What the controlling process must not pay for.
HEAVY = ("torch", "torchvision", "numpy", "scipy", "sklearn")


def modules_with_examples() -> list[str]:
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if ">>>" in path.read_text()
    )


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_every_import_goes_downward_and_none_leads_the_controller_to_torch() -> None:
    command = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert command is not None, "install the project with its extra 'dev'"

    ended = subprocess.run(
        [command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout
    assert " kept, 0 broken." in ended.stdout


# One interpreter, so the first module or command with something heavy is the one to look at.
CONTROLLERS = (
    "perfsuite",
    "perfsuite.plugin.hooks",
    "perfsuite.cli.app",
    "perfsuite.experiments.rank_session",
    "perfsuite.cli.doctor",
)


def test_the_controllers_modules_and_the_public_names_import_nothing_heavy() -> None:
    ended = run_python(
        "import importlib, sys, perfsuite\n"
        f"for module in {CONTROLLERS!r}:\n"
        "    importlib.import_module(module)\n"
        f"    print(module, sorted({set(HEAVY)!r} & set(sys.modules)))\n"
        "for name in perfsuite.__all__: getattr(perfsuite, name)\n"
        f"print('public names', sorted({set(HEAVY)!r} & set(sys.modules)))"
    )

    expected = [f"{name} []" for name in (*CONTROLLERS, "public names")]
    assert (ended.stdout.splitlines(), ended.stderr) == (expected, "")


def test_help_imports_nothing_heavy() -> None:
    ended = run_python(
        "import sys, perfsuite.cli.app\n"
        "for arguments in ([], ['run'], ['doctor']):\n"
        "    sys.argv = ['perfsuite', *arguments, '--help']\n"
        "    try: perfsuite.cli.app.main()\n"
        "    except SystemExit as ended: print('ended in', ended.code)\n"
        f"    print(sorted({set(HEAVY)!r} & set(sys.modules)))\n"
    )

    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert (lines.count("ended in 0"), lines.count("[]")) == (3, 3)
    assert ended.stdout.count("Usage: perfsuite") == 3


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    perfsuite = importlib.import_module("perfsuite")

    with pytest.raises(AttributeError) as refused:
        _ = perfsuite.Recipes

    assert str(refused.value) == "module 'perfsuite' has no attribute 'Recipes'"
    assert dir(perfsuite) == sorted(perfsuite.__all__)


def test_a_public_name_is_looked_for_once_since_each_step_asks_for_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    perfsuite = importlib.import_module("perfsuite")
    stage = perfsuite.stage

    monkeypatch.delattr(importlib, "import_module")

    assert perfsuite.stage is stage


def test_the_basic_modules_have_examples() -> None:
    for name in (
        "units",
        "stats.intervals",
        "records.recipe",
        "ranks.failures",
        "experiments.results",
    ):
        assert f"perfsuite.{name}" in modules_with_examples()


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))

    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_file_is_longer_than_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def folders() -> list[Path]:
    """Every folder of the package with code in it."""
    return sorted({path.parent for path in PACKAGE.rglob("*.py")})


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_room_can_be_taken_in_at_a_glance(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]

    assert len(modules) <= 12


def test_the_package_and_the_tests_have_few_doors() -> None:
    kept = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}

    assert len([path for path in PACKAGE.iterdir() if path.name not in kept]) <= 12
    kept = {"conftest.py", "__pycache__"}
    assert len([path for path in (ROOT / "tests").iterdir() if path.name not in kept]) <= 16
