"""The table of faults: each fault that is promised stands there with tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "faults.md"
HEADING = "## The table"
PROMISED = (
    *("rank killed", "rank hung", "rank stopped", "out of memory", "CUDA error", "GPU lost"),
    *("collective times out", "loader worker killed", "loader worker hung"),
    *("dataset raises", "/dev/shm full", "disk full", "temporary folder full", "read-only results"),
    *("clock set", "Ctrl-C", "Ctrl-C twice", "SIGTERM", "controller killed", "power cut"),
)


def table() -> dict[str, list[str]]:
    """The tests of each fault."""
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {row[0]: re.findall(r"`(tests/[\w/]+\.py::\w+)`", row[-1]) for row in rows[2:]}


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", PROMISED)
def test_each_promised_fault_is_in_the_table(fault: str) -> None:
    assert any(name.startswith(fault) for name in table())


def test_each_fault_of_the_table_names_tests_that_exist() -> None:
    for fault, tests in table().items():
        assert tests, fault
        for test in tests:
            path, _, name = test.partition("::")
            assert name in functions_in(ROOT / path), f"{fault}: {test}"
