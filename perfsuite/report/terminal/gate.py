"""Verdicts as a terminal shows them, and as the workflow commands that GitHub reads from a log."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perfsuite.records.verdict import CellVerdict
from perfsuite.report.rows import Column, at
from perfsuite.report.summary import exceptions_of, interval_text, reason_text, verdict_sentence
from perfsuite.report.terminal.tables import table_of
from perfsuite.system.untrusted import printable, printable_lines
from perfsuite.units import counted, format_change, format_ratio, listed

Cells = Sequence[CellVerdict]
_COLUMNS: tuple[Column[CellVerdict], ...] = (
    Column("", "cell", at("name"), is_number=False),
    Column("", "verdict", at("shown"), is_number=False),
    Column("", "change", at("ratio"), format_change, missing=""),
    Column("", "between", interval_text),
    Column("", "pairs", lambda cell: cell.num_pairs or ""),
)
_MEANT = "if a FAIL is meant: perfsuite baseline accept CELL --slowdown RATIO, or --increase COUNT"
_COMMANDS = {"FAIL": "error", "INCONCLUSIVE": "warning", "INVALID": "warning"}
# What ends a command, or one of its properties (actions/toolkit, packages/core/src/command.ts).
_IN_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})


def verdict_lines(cells: Cells, refusal: str | None, differs: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a gate: what was compared, the table, and what it does not say."""
    yield from (printable(f"{name}: {value}") for name, value in differs.items())
    if refusal is not None:
        yield printable_lines(f"not compared: {refusal}")
    if cells:
        yield table_of(_COLUMNS, cells)
    for text, number in Counter(filter(None, (cell.compared_with for cell in cells))).items():
        yield printable(f"{counted(number, 'cell')}: {text}")
    named = defaultdict[str, list[str]](list)
    for cell in cells:
        if cell.by != "identical":  # said once above
            named[reason_text(cell)].append(cell.name)
    for text, names in named.items():
        if text and text != refusal:
            yield printable_lines(f"{printable(listed(names))}: {text}")
    if cells and all(cell.word == "NEW" for cell in cells):
        yield "nothing to compare yet: commit these benchmarks, and the next change is judged"
    if cells and all(cell.policy == "quarantined" for cell in cells):
        yield "nothing was judged: every cell is quarantined, so no verdict counts"
    for text in exceptions_of(cells):
        yield printable(f"accepted: {text}")
    if any(cell.word == "FAIL" and cell.by != "numerics" and not cell.policy for cell in cells):
        yield _MEANT


def annotation_lines(cells: Cells, root: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a workflow command for each cell that failed or is undecided; none outside of GitHub.

    It is an error where the verdict may end the session in red. Names of cells count from `root`.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for cell in cells:
        if (command := _COMMANDS.get(cell.word)) is not None:
            command = command if cell.policy is None else "warning"
            bounds = {"tolerance": cell.tolerance, "limit": cell.limit}
            said = [f"{name} {format_ratio(it)}" for name, it in bounds.items() if it is not None]
            message = "; ".join([f"{cell.name}: {verdict_sentence(cell)}", *said])
            place = _place(cell.name, root, Path(environ.get("GITHUB_WORKSPACE", root)))
            yield f"::{command}{place}::{printable(message.translate(_IN_MESSAGE))}"


def _place(name: str, root: Path, workspace: Path) -> str:
    file, _, function = name.partition("::")
    path = root / file
    if not function or not path.is_file():  # as the cell of a command
        return ""
    shown = path.relative_to(workspace) if path.is_relative_to(workspace) else file
    place = f" file={printable(str(shown).translate(_IN_PROPERTY))}"
    text, at = path.read_text("utf-8", errors="replace"), 0
    for part in function.partition("[")[0].split("::"):
        definition = rf"^[ \t]*(?:async +)?(?:class|def) +{re.escape(part)}\b"
        found = re.compile(definition, re.MULTILINE).search(text, at)
        if found is None:  # it is inherited, or made by a call
            return place
        at = found.end()
    return f"{place},line={text.count(chr(10), 0, at) + 1}"
