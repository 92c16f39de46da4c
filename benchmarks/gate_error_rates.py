"""Error rates and costs of the gate's rule, simulated: the whole table, as Markdown.

python benchmarks/gate_error_rates.py

24 cells, tolerance 2 %, limit 5 %. Exits with 1 if a promise does not hold.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

# One simulation for the tests and for this table.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from simulation import (
    ALPHA_PER_CELL,
    FURTHER,
    LIMIT,
    MISSPECIFIED,
    MONTE_CARLO,
    NOMINAL,
    NUM_SESSIONS,
    PAIR_SDS,
    TOLERANCE,
    Rates,
    World,
    simulate,
)

SLOWDOWNS = (0.0, TOLERANCE, LIMIT, 0.08)
# Power at the limit at least, pairs on average at most, by pair sd.
POWER = {0.01: (0.99, 5.0), 0.02: (0.95, 10.0)}


def main(
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 0,
    max_pairs: Annotated[int, typer.Option(min=3, help="Where the rule gives up.")] = 16,
) -> None:
    """Simulate every row and print the table and the promises."""
    typer.echo(
        f"{NUM_SESSIONS:,} cells a row and slowdown; false FAIL may be {ALPHA_PER_CELL:.4f} "
        "a cell\n\n"
        "| pair sd | world | 0: FAIL / pairs | +2 %: FAIL / pairs "
        "| +5 %: FAIL / PASS / inconclusive / pairs | +8 %: FAIL / pairs |\n"
        "|---|---|---|---|---|---|"
    )
    broken = []
    for pair_sd in PAIR_SDS:
        for world in (NOMINAL, *MISSPECIFIED, *FURTHER):
            row = [
                simulate(world, pair_sd=pair_sd, slowdown=slowdown, max_pairs=max_pairs, seed=seed)
                for slowdown in SLOWDOWNS
            ]
            typer.echo(show(world, pair_sd, row))
            broken += broken_promises(world, pair_sd, row)
    typer.echo("\n" + ("\n".join(broken) or "every promise holds"))
    sys.exit(bool(broken))


def show(world: World, pair_sd: float, row: list[Rates]) -> str:
    """Return one line of the table."""
    same, tolerable, slow, slower = row
    return (
        f"| {pair_sd:.1%} | {world.name} "
        f"| {same.failed:.4f} / {same.pairs:.2f} | {tolerable.failed:.4f} / {tolerable.pairs:.2f} "
        f"| {slow.failed:.3f} / {slow.passed:.3f} / {slow.inconclusive:.3f} / {slow.pairs:.2f} "
        f"| {slower.failed:.3f} / {slower.pairs:.2f} |"
    )


def broken_promises(world: World, pair_sd: float, row: list[Rates]) -> list[str]:
    """Return what the row should have kept and did not."""
    same, tolerable, slow, _ = row
    where = f"{world.name}, pair sd {pair_sd:.1%}"
    broken = []
    if world in MISSPECIFIED and same.failed > ALPHA_PER_CELL:
        broken.append(f"{where}: identical code fails at {same.failed:.4f}")
    if world == NOMINAL and tolerable.failed > ALPHA_PER_CELL + MONTE_CARLO:
        broken.append(f"{where}: a tolerable slowdown fails at {tolerable.failed:.4f}")
    if world == NOMINAL and pair_sd in POWER:
        power, pairs = POWER[pair_sd]
        if slow.failed < power or slow.pairs > pairs:
            broken.append(f"{where}: power {slow.failed:.3f} with {slow.pairs:.1f} pairs")
    return broken


if __name__ == "__main__":
    typer.run(main)
