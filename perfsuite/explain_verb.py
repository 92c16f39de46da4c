"""The verb `explain`: why cells moved between two stored runs. Must not decide whether they did."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.errors import SettingError
from perfsuite.files import check_writable, write_atomically
from perfsuite.gate.explain import explain_stored
from perfsuite.gate.stored import StoredRun, Unusable, read_run
from perfsuite.remote import locate
from perfsuite.report.gate import explained
from perfsuite.units import format_change
from perfsuite.untrusted import printable
from perfsuite.verdicts import Explanation


def explain(
    base: Annotated[str, typer.Argument(help="A stored run, such as baselines/.../0001_a.json.")],
    head: Annotated[str, typer.Argument(help="The run to explain, such as results/run.json.")],
    cell: Annotated[
        str | None, typer.Argument(help="One cell; all that both have unless given.")
    ] = (None),
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the explanations.")
    ] = None,
) -> None:
    """Say why cells moved between two runs: the stage that moved most, the counts that changed."""
    check_writable(json_file)
    before, after = _read(base, "BASE"), _read(head, "HEAD")
    common = [name for name in after.cells if name in before.cells]
    if cell is not None and cell not in common:
        raise SettingError(
            f"{cell!r} is not a cell of both runs; they share {len(common)}"
            + (f", {common[0]!r} for one" if common else "")
        )
    names = common if cell is None else [cell]
    found: list[tuple[str, Explanation]] = []
    for name in names:
        mine, its = before.cells[name], after.cells[name]
        explanation = explain_stored(mine, its)
        found.append((name, explanation))
        change = _change(mine.median_s, its.median_s)
        typer.echo(printable(f"{name}: {change}; {explained(explanation)}"))
    if not names:
        typer.echo("the two runs share no cell")
    if json_file is not None:
        write_atomically(json_file, _to_document(found))


def _change(base_s: float, head_s: float) -> str:
    ratio = head_s / base_s
    if math.isinf(ratio):  # of a time that no clock measures
        return f"{base_s} s -> {head_s} s, more than a ratio can say"
    return format_change(ratio)


def _read(text: str, name: str) -> StoredRun:
    run = read_run(locate(text, name))
    if isinstance(run, Unusable):
        raise SettingError(str(run))
    return run


def _to_document(found: list[tuple[str, Explanation]]) -> bytes:
    cells: list[dict[str, Any]] = [
        {"id": name, **msgspec.to_builtins(explanation)} for name, explanation in found
    ]
    document = {"schema": 1, "cells": cells}
    return msgspec.json.format(msgspec.json.encode(document), indent=2)
