"""Workflow commands: where they point, what they say, and that no name makes another one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.terminal.gate import annotation_lines

BENCHMARKS = """\
import pytest


class TestShop:
    @pytest.mark.parametrize("kind", ["a"])
    def test_price(self, benchmark, kind): ...

    def test_prices(self, benchmark): ...


class TestDepot(TestShop):
    async  def test_price(self, benchmark): ...
"""


def cell(word: str = "FAIL", **changes: Any) -> CellVerdict:
    fields: dict[str, Any] = {
        "name": "benchmarks/test_shop.py::TestShop::test_price[a]",
        "word": word,
        "by": "pairs",
        "ratio": 1.1,
        "interval": (1.05, 1.15),
        "num_pairs": 6,
        "tolerance": 0.02,
        "limit": 0.05,
    }
    return CellVerdict(**(fields | changes))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of pytest; the checkout is the folder above it."""
    (tmp_path / "sub" / "benchmarks").mkdir(parents=True)
    (tmp_path / "sub" / "benchmarks" / "test_shop.py").write_text(BENCHMARKS)
    return tmp_path / "sub"


def lines(root: Path, *cells: CellVerdict, **environ: str) -> list[str]:
    on_github = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(root.parent)}
    return list(annotation_lines(cells, root, on_github | environ))


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """A command as the runner reads it (actions/runner, src/Runner.Common/ActionCommand.cs)."""

    def unescaped(text: str, *codes: str) -> str:
        for code in codes:
            text = text.replace(code, chr(int(code[1:], 16)))
        return text

    assert line.startswith("::")
    head, _, data = line[2:].partition("::")
    command, _, rest = head.partition(" ")
    properties = dict(pair.split("=", 1) for pair in rest.split(",") if pair)
    of_property = ("%0D", "%0A", "%3A", "%2C", "%25")
    return (
        command,
        {name: unescaped(value, *of_property) for name, value in properties.items()},
        unescaped(data, "%0D", "%0A", "%25"),
    )


def test_a_failure_is_an_error_at_its_function_with_change_interval_and_limit(root: Path) -> None:
    assert lines(root, cell()) == [
        "::error file=sub/benchmarks/test_shop.py,line=6::"
        "benchmarks/test_shop.py::TestShop::test_price[a]: FAIL: +10.0 %25 against the base, "
        "between +5.0 %25 and +15.0 %25 (6 pairs); tolerance 2.0 %25; limit 5.0 %25"
    ]


def test_what_is_undecided_or_invalid_is_a_warning_and_nothing_else_is_told(root: Path) -> None:
    undecided = cell("INCONCLUSIVE", interval=(0.0, math.inf), num_pairs=1, detectable=math.inf)
    invalid = CellVerdict(
        name="benchmarks/test_shop.py::TestShop::test_prices",
        word="INVALID",
        by="collection",
        reason="it ended:\n  | killed",
    )
    others = [cell(word) for word in ("PASS", "IMPROVED", "NEW", "SKIPPED", "ERROR", "VANISHED")]

    assert lines(root, undecided, invalid, *others) == [
        "::warning file=sub/benchmarks/test_shop.py,line=6::"
        "benchmarks/test_shop.py::TestShop::test_price[a]: INCONCLUSIVE; tolerance 2.0 %25; "
        "limit 5.0 %25",
        "::warning file=sub/benchmarks/test_shop.py,line=8::"
        "benchmarks/test_shop.py::TestShop::test_prices: INVALID; it ended:%0A  | killed",
    ]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("TestDepot::test_price", ",line=12"),
        ("TestDepot::test_prices", ""),  # which it inherits
        ("test_price", ",line=6"),
        ("test_pric", ""),
        ("TestShop::test_price[b::c[1]]", ",line=6"),
    ],
)
def test_the_line_is_that_of_the_definition_in_its_class(root: Path, name: str, place: str) -> None:
    (line,) = lines(root, cell(name=f"benchmarks/test_shop.py::{name}"))

    assert line.startswith(f"::error file=sub/benchmarks/test_shop.py{place}::")


@pytest.mark.parametrize("name", ["train", "gone.py::test_price", "", "sub", "a\0b::c"])
def test_a_cell_without_a_file_has_no_place(root: Path, name: str) -> None:
    (line,) = lines(root, cell(name=name))

    assert line.startswith("::error::")


def test_nothing_is_said_outside_of_github(root: Path) -> None:
    assert lines(root, cell(), GITHUB_ACTIONS="") == []
    assert list(annotation_lines([cell()], root, {})) == []


def test_a_root_outside_of_the_workspace_is_not_made_relative_to_it(root: Path) -> None:
    (line,) = lines(root, cell(), GITHUB_WORKSPACE="/elsewhere")

    assert line.startswith("::error file=benchmarks/test_shop.py,line=6::")


@pytest.mark.parametrize(
    "hostile",
    [
        "x\n::error file=a.py::owned",
        "x\r\n::add-mask::secret",
        "a,line=1::owned",
        "100%0A::stop-commands::x",
        "##[add-mask]x",
        "\x1b[2J\u202e",
    ],
)
def test_no_name_and_no_reason_makes_another_command(root: Path, hostile: str) -> None:
    name = f"benchmarks/test_shop.py::test_price[{hostile}]"

    (line,) = lines(root, cell(name=name, reason=hostile))

    assert line.isprintable()
    command, properties, message = parsed(line)
    assert command == "error"
    assert properties == {"file": "sub/benchmarks/test_shop.py", "line": "6"}
    # Data alone, in which a line end is one again.
    assert message.startswith("benchmarks/test_shop.py::test_price[")
    assert message.endswith("; tolerance 2.0 %; limit 5.0 %")


@pytest.mark.parametrize("folder", ["a,line=1", "x\r\ny: z%2C", "##[add-mask]x"])
def test_no_path_makes_another_property(root: Path, folder: str) -> None:
    (root / folder).mkdir()
    (root / folder / "test_shop.py").write_text(BENCHMARKS)

    (line,) = lines(root, cell(name=f"{folder}/test_shop.py::TestShop::test_price"))

    assert line.isprintable()
    command, properties, _ = parsed(line)
    assert command == "error"
    assert properties == {"file": f"sub/{folder}/test_shop.py", "line": "6"}


@pytest.mark.parametrize("policy", ["quarantined", "advisory"])
def test_what_changes_no_exit_code_is_a_warning(root: Path, policy: str) -> None:
    (line,) = lines(root, cell(policy=policy))

    command, _, message = parsed(line)
    assert (command, f"FAIL {policy}" in message) == ("warning", True)
