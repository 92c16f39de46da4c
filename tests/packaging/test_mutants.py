"""The fixed mutants of benchmarks/mutants.py are mutations of the package as it is.

cosmic-ray, which makes them, is not asked here: a mutated line is believed to be its work. That is
the same as long as the line is, so one that stands once in its definition is a mutant that is
found, and not another one. Orders then decide nothing, and are not looked at.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent.parent

sys.path.append(str(ROOT / "benchmarks"))

import mutants  # noqa: E402
from mutants import LAYOUT, Mutant, Source, find  # noqa: E402

DRAWN = [Mutant(**fields) for fields in json.loads(mutants.DRAWN.read_text())]


def owners(node: ast.AST, name: str = "", is_local: bool = False) -> Iterator[tuple[int, str]]:
    """Each line of what a definition is in, and its qualified name; inner ones come later."""
    for child in ast.iter_child_nodes(node):
        inner, decorators = "", []
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner, decorators = child.name, child.decorator_list
        elif isinstance(child, ast.Assign | ast.AnnAssign) and not is_local:
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            inner = ast.unparse(target)
        whole = ".".join(filter(None, (name, inner)))
        if inner:
            begin = min([child.lineno, *(one.lineno for one in decorators)])
            yield from ((line, whole) for line in range(begin, child.end_lineno + 1))
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        is_class = isinstance(child, ast.ClassDef)
        yield from owners(child, whole, is_function or (is_local and not is_class))


def places(label: str) -> Iterator[tuple[str, str]]:
    """Each line of a module's files, with the definition that it is in."""
    for path in LAYOUT[label].files:
        source = Source(path, (ROOT / path).read_text())
        definitions = dict(owners(ast.parse(source.text)))
        for number, line in enumerate(source.lines, 1):
            yield definitions.get(number, ""), line


LINES = {label: list(places(label)) for label in LAYOUT}


def test_there_are_a_hundred_changes_of_a_line_and_none_twice() -> None:
    assert len({repr(mutant) for mutant in DRAWN}) == len(DRAWN) == mutants.NUM_MUTANTS
    assert [mutant for mutant in DRAWN if mutant.mutated == mutant.line] == []


def test_the_line_of_every_mutant_stands_once_in_its_definition() -> None:
    counts = {
        number: LINES[mutant.label].count((mutant.definition, mutant.line))
        for number, mutant in enumerate(DRAWN, 1)
    }

    assert {number: count for number, count in counts.items() if count != 1} == {}


# --- what has changed since a mutant was drawn ---

QUOTIENT = Mutant(
    label="screen",
    definition="_fit",
    operator="core/ReplaceBinaryOperator_Div_Mul",
    arguments={},
    order=1,
    of=2,
    line="mean = sum(times) / num",
    mutated="mean = sum(times) * num",
)


def quotients(*lines: str) -> list[SimpleNamespace]:
    """What the operator finds in the definition now."""
    return [
        SimpleNamespace(
            definition=QUOTIENT.definition,
            operator=QUOTIENT.operator,
            order=order,
            line=line,
            mutated=line.replace("/", "*"),
        )
        for order, line in enumerate(lines)
    ]


def test_a_mutant_whose_line_moved_is_found_by_its_line() -> None:
    sites = quotients(QUOTIENT.line, "return mean / 2")

    assert find(QUOTIENT, sites, {}) == ("line", sites[0])


def test_a_mutant_of_the_same_operands_in_another_line_is_found_by_its_order() -> None:
    sites = quotients("half = a / 2", "return sum(shifted_times) / num")

    assert find(QUOTIENT, sites, {}) == ("order", sites[1])


@pytest.mark.parametrize("line", ["leverage = 1 / num", "mean = sum(times) / df"])
def test_a_mutant_of_other_operands_in_its_place_is_not_taken_for_it(line: str) -> None:
    sites = quotients("half = a / 2", line)

    with pytest.raises(LookupError, match="screen: _fit has no such mutation any more"):
        find(QUOTIENT, sites, {})
