"""What makes a cell another one beside the code under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsuite.gate.baselines.digests import CellDigests

CELL = "benchmarks/test_a.py::test_a[1]"
FILES = {
    "shop.py": "",
    "conftest.py": "",
    "benchmarks/helper.py": "",
    "benchmarks/test_a.py": "",
    "benchmarks/test_b.py": "",
}


def digest(root: Path, **record: object) -> str | None:
    return CellDigests(root, [root / "benchmarks"], ["test_*.py"]).of(CELL, record)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "is_other"),
    [
        *(("benchmarks/test_a.py", True), ("benchmarks/helper.py", True), ("conftest.py", True)),
        *(("benchmarks/test_b.py", False), ("shop.py", False)),
    ],
)
def test_a_cell_is_another_where_what_it_runs_beside_the_code_differs(
    root: Path, name: str, is_other: bool
) -> None:
    before = digest(root)

    (root / name).write_text("changed = True\n")

    assert (digest(root) != before) == is_other


def test_a_cell_is_another_with_other_options_of_the_suite(root: Path) -> None:
    found = {
        CellDigests(root, [root / "benchmarks"], ["test_*.py"], options).of(CELL, {})
        for options in ((), [("--size=big", "")], [("--size=small", "")])
    }

    assert len(found) == 3


def test_a_cell_is_another_with_another_recipe_or_workload() -> None:
    root = Path(__file__).parents[3]
    digests = CellDigests(root, [root / "tests" / "gate"], ["test_*.py"])
    cell = f"{Path(__file__).relative_to(root)}::test_a"
    recipe = {"precision": "fp32", "num_workers": 2}

    found = digests.of(cell, {"workload": "toy-mlp", "recipe": recipe})

    assert found == digests.of(cell, {"workload": "toy-mlp", "recipe": {**recipe}, "losses": [1]})
    assert found != digests.of(cell, {"workload": "lenet", "recipe": recipe})
    assert found != digests.of(
        cell, {"workload": "toy-mlp", "recipe": {**recipe, "num_workers": 0}}
    )


def test_where_the_files_of_a_cell_are_not_known_it_has_no_digest(root: Path) -> None:
    assert CellDigests(root, [root / "elsewhere"], ["test_*.py"]).of(CELL, {}) is None
