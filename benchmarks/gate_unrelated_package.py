"""Whether the gate finds a slowdown in a package that knows nothing of it, and its cost.

python benchmarks/gate_unrelated_package.py

Gates a branch with 12 % more work in one function of four, and one that changes nothing. Exits with
1 unless the first ends in 10 with FAIL of that cell alone and its function named, the second in 0,
and each within 2 minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from planted_package import WORK, Gated, PlantedPackage, cell_of

_MAX_S = 120.0


def main(
    name: Annotated[str, typer.Option(help=f"Which function: {', '.join(WORK)}.")] = "weigh",
    slowdown: Annotated[float, typer.Option(min=0, help="0.12 is 12 % more work.")] = 0.12,
) -> None:
    """Gate a slower package, then its identical twin."""
    with tempfile.TemporaryDirectory() as folder:
        package = PlantedPackage(Path(folder) / "parcels")
        package.plant(name, slowdown)
        slower = package.gate()
        _show(f"+{slowdown:.0%} in {name}", slower)
        package.plant(name, 0.0)
        twin = package.gate()
        _show("identical twin", twin)
    broken = [*_why_not_blamed(slower, name), *_why_not_passed(twin)]
    typer.echo("\n".join(broken) or "as promised")
    sys.exit(bool(broken))


def _show(what: str, gated: Gated) -> None:
    words = ", ".join(
        f"{cell.rpartition('test_')[2]} {verdict['word']}" for cell, verdict in gated.cells.items()
    )
    typer.echo(
        f"{what}: exit {gated.exit_code} in {gated.took_s:.0f} s, "
        f"{gated.document['pairs']} pairs: {words}"
    )


def _why_not_blamed(gated: Gated, name: str) -> list[str]:
    """What is wrong with the verdicts on the slower package."""
    wrong = _why_not(gated, 10)
    failed = [cell for cell, verdict in gated.cells.items() if verdict["word"] == "FAIL"]
    if failed != [cell_of(name)]:
        return [*wrong, f"FAIL of {failed} instead of {cell_of(name)} alone"]
    explanation = gated.cells[cell_of(name)]["explanation"]
    functions = [operator["name"] for operator in explanation["operators"]]
    if functions[:1] != [f"parcels.py:{name}"]:
        wrong.append(f"the explanation names {functions[:3]} before parcels.py:{name}")
    return wrong


def _why_not_passed(gated: Gated) -> list[str]:
    """What is wrong with the verdicts on the identical twin."""
    return _why_not(gated, 0)


def _why_not(gated: Gated, exit_code: int) -> list[str]:
    wrong = []
    if gated.exit_code != exit_code:
        wrong.append(f"exit code {gated.exit_code} instead of {exit_code}")
    if gated.took_s > _MAX_S:
        wrong.append(f"took {gated.took_s:.0f} s, more than {_MAX_S:.0f}")
    return wrong


if __name__ == "__main__":
    typer.run(main)
