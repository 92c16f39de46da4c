"""Whether cells are as fast and as steady as with perfsuite of another commit, in pairs of runs.

python benchmarks/against_commit.py COMMIT --out FOLDER [--pairs 30]

Each run is a pytest of its own over the same two cells, training in one process and on two ranks.
The order of a pair alternates. The spread is that of one run: the standard deviation of the
difference between a commit's successive runs, over the square root of two, so that drift of the
machine is left out. Each finished pair is a line of FOLDER/against_commit.jsonl, and a second start
goes on. Exits with 1 where the time is above 1.02 of that commit's, or the spread above 1.2 of it.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from session_log import PYTEST, SessionLog, git, must

_CELLS: Final = ("test_lenet_digits[0-single-fp32-none]", "test_lenet_digits[0-ddp:2-fp32-none]")
_MAX_TIME_RATIO: Final = 1.02
_MAX_SPREAD_RATIO: Final = 1.2


def main(
    commit: Annotated[str, typer.Argument(help="Whose perfsuite to compare with.")],
    out: Annotated[Path, typer.Option(help="Folder of what is finished.")],
    pairs: Annotated[int, typer.Option(min=3, help="In all.")] = 30,
) -> None:
    """Run the pairs that are missing, and print what all of them came to."""
    log = SessionLog(out.resolve(), "against_commit")
    here = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="against-commit-") as name:
        trees = {"then": Path(name) / "then", "now": Path(name) / "now"}
        for side, tree in trees.items():
            git(here, "clone", "--quiet", str(here), str(tree))
            git(tree, "checkout", "--quiet", commit if side == "then" else "HEAD")
        for number in range(len(log.sessions), pairs):
            order = list(trees) if number % 2 else list(trees)[::-1]
            found = {side: _run_cells(trees[side]) for side in order}
            times_s = {side: seconds for side, (seconds, _) in found.items()}
            log.add("pair", found["now"][1], {}, commit=commit, times_s=times_s)
            typer.echo(f"pair {number + 1} of {pairs}: {times_s}")
    sys.exit(_report(log.sessions))


def _run_cells(tree: Path) -> tuple[dict[str, float], Any]:
    """Return the median seconds of each cell, and how its pytest ended."""
    result = tree / "times.json"
    wanted = [f"benchmarks/test_training_step.py::{cell}" for cell in _CELLS]
    ended = must([*PYTEST[:-1], *wanted, f"--benchmark-json={result}"], tree)
    cells = json.loads(result.read_text())["benchmarks"]
    return {cell["name"]: cell["stats"]["median"] for cell in cells}, ended


def _report(sessions: list[dict[str, Any]]) -> bool:
    """Print the ratios of each cell; return whether one is above its limit."""
    is_missed = False
    for cell in _CELLS:
        logs = {
            side: [math.log(one["times_s"][side][cell]) for one in sessions]
            for side in ("then", "now")
        }
        differences = [now - then for then, now in zip(logs["then"], logs["now"], strict=True)]
        ratio = math.exp(statistics.median(differences))
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        spreads = {
            side: statistics.stdev(b - a for a, b in pairwise(of_side)) / math.sqrt(2)
            for side, of_side in logs.items()
        }
        spread_ratio = spreads["now"] / spreads["then"]
        typer.echo(
            f"{cell}: {ratio:.4f} of the time then (standard error {error:.2%}), spread of a run "
            f"{spreads['then']:.2%} then and {spreads['now']:.2%} now: {spread_ratio:.2f}"
        )
        is_missed |= ratio > _MAX_TIME_RATIO or spread_ratio > _MAX_SPREAD_RATIO
    typer.echo("\n".join(sorted({one["host"] for one in sessions})))
    return is_missed


if __name__ == "__main__":
    typer.run(main)
