"""False alarms and time of the whole table of `perfsuite verify --all`, seed by seed.

python benchmarks/verify_seeds.py lenet-digits --seeds 20

Correct code is verified, so every mismatch and every "no power" is an alarm about nothing. Exits
with 1 if there was one.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.experiments.rank_session import Session
from perfsuite.experiments.settings import Settings
from perfsuite.experiments.verify import every_recipe, verify_every


def main(
    workload: str,
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    steps: Annotated[int, typer.Option(min=1, max=10, help="Optimizer steps.")] = 3,
) -> None:
    """Verify a workload under every recipe, once for each seed."""
    recipes = list(every_recipe())
    counts: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        settings = Settings(seed=seed, import_roots=(Path.cwd(),))
        begin_s = time.monotonic()
        reports = verify_every(
            Session(settings, say=typer.echo), workload, recipes, steps, lambda *_: None
        )
        took_s = time.monotonic() - begin_s
        of_seed = Counter(report.status for report in reports)
        counts += of_seed
        shown = ", ".join(f"{number} {status}" for status, number in sorted(of_seed.items()))
        typer.echo(f"seed {seed}: {took_s:.0f} s, {shown}")
        for report in reports:
            if report.status in ("mismatch", "no power"):
                typer.echo(str(report))
    num_alarms = counts["mismatch"] + counts["no power"]
    num_verified = num_alarms + counts["equivalent"]
    # Clopper and Pearson's upper bound at 95 % for no event in n trials: 1 - 0.05 ** (1 / n).
    bound = (
        f", so below {-math.expm1(math.log(0.05) / num_verified):.2%} at 95 % confidence"
        if num_alarms == 0 and num_verified
        else ""
    )
    typer.echo(
        f"{workload}, {seeds} seeds on {os.cpu_count()} cores: "
        f"{num_alarms} false alarms in {num_verified} verifications{bound}"
    )
    sys.exit(num_alarms > 0)


if __name__ == "__main__":
    typer.run(main)
