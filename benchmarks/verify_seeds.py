"""False alarms and time of `perfsuite verify` on correct workloads, seed by seed.

python benchmarks/verify_seeds.py lenet-digits --seeds 20
python benchmarks/verify_seeds.py transformer-tiny transformer-tiny-lora drawing --each-mode

The whole table of `verify --all`, or with `--each-mode` one row for each mode and world size and
for each precision. Correct code is verified, so every mismatch and every "no power" is an alarm
about nothing. Exits with 1 if there was one. Each seed is a line in FILE when it ends; the lines
that are there are not verified again.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

import perfsuite
from perfsuite.experiments.rank_session import Session
from perfsuite.experiments.verify import every_recipe, verify_every
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.records.recipe import Recipe


@perfsuite.workload("drawing")
def drawing() -> perfsuite.Workload:
    """A residual perceptron with input noise, dropout and stochastic depth."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16)
            )

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            kept = torch.rand(len(hidden), 1, device=hidden.device) < 0.8
            return hidden + self.layers(hidden) * kept / 0.8

    class Noise(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs + 0.1 * torch.randn_like(inputs)

    points = torch.randn(960, 16, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(points, points[:, :4].argmax(1))
    return perfsuite.Workload(
        name="drawing",
        build_model=lambda: nn.Sequential(Noise(), *(Block() for _ in range(8)), nn.Linear(16, 4)),
        build_dataset=lambda split: data if split == "train" else None,
        loss=nn.functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        blocks=lambda model: list(model)[1:-1],
        micro_batch_size=24,
    )


def one_of_each() -> list[Recipe]:
    """Each mode in float32 at each world size, and each precision in one process."""
    plain = {"grad_accumulation_steps": 1, "checkpointing": "none", "clip_grad_norm": None}
    found: dict[tuple[str, str], Recipe] = {}
    for recipe in every_recipe():
        is_plain = all(getattr(recipe, name) == value for name, value in plain.items())
        is_usual = recipe.comm_hook == "none" and recipe.plan.schedule in (None, "1f1b")
        is_one = recipe.precision == "fp32" or recipe.parallel == "single"
        if is_plain and is_usual and is_one:
            found.setdefault((recipe.parallel, recipe.precision), recipe)
    return list(found.values())


def main(
    workloads: list[str],
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    steps: Annotated[int, typer.Option(min=1, max=10, help="Optimizer steps.")] = 3,
    each_mode: Annotated[bool, typer.Option(help="One row for each mode and precision.")] = False,
    file: Annotated[Path, typer.Option(help="Lines of what is done.")] = Path(
        "results/verify_seeds.jsonl"
    ),
) -> None:
    """Verify workloads under many recipes, once for each seed."""
    recipes = one_of_each() if each_mode else list(every_recipe())
    file.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        row = json.loads(line)
        done[row["workload"], row["seed"], row["recipes"], row["steps"]] = Counter(row["counts"])
    total: Counter[str] = Counter()
    for seed in range(first, first + seeds):
        for workload in workloads:
            key = (workload, seed, len(recipes), steps)
            if key not in done:
                done[key] = _verify(workload, seed, recipes, steps)
                kept = dict(zip(("workload", "seed", "recipes", "steps"), key, strict=True))
                with file.open("a") as lines:
                    lines.write(json.dumps({**kept, "counts": done[key]}) + "\n")
            total += done[key]
    num_alarms = total["mismatch"] + total["no power"]
    num_verified = num_alarms + total["equivalent"]
    # Clopper and Pearson's upper bound at 95 % for no event in n trials: 1 - 0.05 ** (1 / n).
    bound = (
        f", so below {-math.expm1(math.log(0.05) / num_verified):.2%} at 95 % confidence"
        if num_alarms == 0 and num_verified
        else ""
    )
    typer.echo(
        f"{', '.join(workloads)}, {seeds} seeds on {os.cpu_count()} cores: "
        f"{num_alarms} false alarms in {num_verified} verifications{bound}"
    )
    sys.exit(num_alarms > 0)


def _verify(workload: str, seed: int, recipes: list[Recipe], steps: int) -> Counter[str]:
    settings = GroupPolicy(device="auto", seed=seed, import_roots=(str(Path.cwd()),))
    begin_s = time.monotonic()
    outcomes = [*verify_every(Session(settings, say=typer.echo), workload, recipes, steps)]
    if failed := [str(report) for report, fails in outcomes if fails]:
        sys.exit("\n".join(failed))
    reports = [report for report, _ in outcomes]
    counts = Counter[str](report.status for report in reports)
    shown = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    typer.echo(f"{workload}, seed {seed}: {time.monotonic() - begin_s:.0f} s, {shown}")
    for report in reports:
        if report.status in ("mismatch", "no power"):
            typer.echo(str(report))
    return counts


if __name__ == "__main__":
    typer.run(main)
