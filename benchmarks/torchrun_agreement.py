"""Whether a cell is as fast under torchrun as under the one-machine launcher, with equal ranks.

python benchmarks/torchrun_agreement.py

Measures the same cells in whole sessions of both kinds that alternate, in pairs whose order is
turned round each time. Exits with 1 unless the medians over all pairs agree within 3 %, and all
counts exactly.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from torchrun_launches import Suite

from perfsuite import stats
from perfsuite.records import CellLine
from perfsuite.units import format_seconds

_MAX_DIFFERENCE_RATIO = 0.03
_CELLS = """
import pytest
from perfsuite import Recipe

@pytest.mark.parametrize("parallel", ["ddp:2", "single"])
def test_lenet(train_benchmark, parallel):
    train_benchmark("lenet-digits", Recipe(parallel=parallel))

def test_all_reduce(all_reduce_benchmark):
    all_reduce_benchmark("ddp:2", 2**20)
"""


def main(
    num_pairs: Annotated[int, typer.Option("--pairs", min=2, help="Sessions of each kind.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of a cell and session.")] = 20,
    two_agents: Annotated[
        bool, typer.Option("--two-agents", help="One rank each, as on two hosts.")
    ] = False,
) -> None:
    """Alternate sessions, and print the ratio torchrun / one machine of each cell."""
    agents, num_ranks_each = ([[], []], 1) if two_agents else ([[]], 2)
    pairs: dict[str, list[tuple[CellLine, CellLine]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        suite = Suite(Path(name))
        (suite.folder / "test_agreement.py").write_text(_CELLS)
        (suite.folder / "pytest.ini").write_text("[pytest]\n")

        def measure(by_torchrun: bool) -> dict[str, CellLine]:
            options = (f"--perf-rounds={rounds}", "--perf-device=cpu")
            if not by_torchrun:
                return suite.run_alone(*options)
            return suite.run_by_torchrun(agents, num_ranks_each, *options, host="127.0.0.1")

        for number in range(num_pairs):
            order = (False, True) if number % 2 == 0 else (True, False)
            lines = {by_torchrun: measure(by_torchrun) for by_torchrun in order}
            for cell, alone in lines[False].items():
                pairs[cell].append((alone, lines[True][cell]))
            typer.echo(f"pair {number + 1} of {num_pairs} done")
    wrong = [text for cell, measured in pairs.items() for text in _show(cell, measured)]
    typer.echo("\n".join(wrong) or "as promised")
    sys.exit(bool(wrong))


def _show(cell: str, pairs: list[tuple[CellLine, CellLine]]) -> list[str]:
    """Print a cell's figures, and return what is wrong with them."""
    alone = [stats.median(one.step_times_s) for one, _ in pairs]
    together = [stats.median(other.step_times_s) for _, other in pairs]
    ratios = [theirs / ours for ours, theirs in zip(alone, together, strict=True)]
    # A pair that was disturbed is a long tail: the median of pairs does not see it.
    ratio = stats.median(ratios)
    spread = stats.robust_sd([math.log(one) for one in ratios])
    counts = {one.perfsuite.counts for pair in pairs for one in pair if one.perfsuite is not None}
    typer.echo(
        f"{cell}: {format_seconds(stats.median(alone))} alone, "
        f"{format_seconds(stats.median(together))} under torchrun; ratio {ratio:.4f} "
        f"(sd of a pair {spread:.2%}, of {len(pairs)} pairs), "
        f"{'equal counts' if len(counts) == 1 else 'counts differ'}"
    )
    wrong = []
    if abs(ratio - 1) > _MAX_DIFFERENCE_RATIO:
        wrong.append(f"{cell}: the times differ by {ratio - 1:+.2%}")
    if len(counts) != 1:
        wrong.append(f"{cell}: {len(counts)} different counts: {counts}")
    return wrong


if __name__ == "__main__":
    typer.run(main)
