"""What changed in a loop's mathematics, told of real trainings, counted.

python benchmarks/numerics_changes.py --runs 20 --out FOLDER

Of each run a training is written anew with another seed, shape, optimizer and dtype, and then in
three ways: with a variable renamed ("same bits"), with the terms of a sum in another order
("rounding") and with a learning rate that is 10 % higher ("changed" at step 1, in its weights).
Every other run tells no loss. Steps, digests, records and the comparison are the gate's own; both
arms of a pair run in this process, one after the other. Each finished run is a line of
FOLDER/numerics_changes.jsonl, and a second start goes on. Exits with 1 where one is told otherwise.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import torch
import typer

from perfsuite.experiments.results import add_digests
from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.numerics_change import describe_numerics_change
from perfsuite.ranks.messages import UserCode
from perfsuite.records.stages import untimed
from perfsuite.worker.jobs.user_code import UserLoop
from perfsuite.worker.measure.iterations import Iterations
from perfsuite.worker.training.trainer import seed_random_numbers

_TRAINING: Final = """
import perfsuite
import torch


class Sum(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))

    def forward(self, inputs):
        first, second, third = (part(inputs) for part in self.parts)
        return (first + second) + third


def train():
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, {width}),
        *(layer for _ in range({depth}) for layer in (Sum({width}), torch.nn.LayerNorm({width}),
                                                      torch.nn.GELU())),
        torch.nn.Linear({width}, 10),
    ).to(torch.{dtype})
    optimizer = torch.optim.{optimizer}(model.parameters(), lr={rate})
    while True:
        inputs = torch.randint(50, (32,))
        outputs = model(inputs)
        loss = torch.nn.functional.cross_entropy(outputs, inputs % 10)
        optimizer.zero_grad()
        loss.backward()
        if {tells}:
            perfsuite.log_loss(loss)
        optimizer.step()
"""
_CHANGES: Final = {
    "same bits": ("outputs", "scores"),
    "rounding": ("(first + second) + third", "first + (second + third)"),
    "changed": ("lr=", "lr=1.1 * "),
}
_NUM_STEPS: Final = 12


def main(
    out: Annotated[Path, typer.Option(help="Folder of what is finished.")],
    runs: Annotated[int, typer.Option(min=1, help="Of each change.")] = 20,
) -> None:
    """Run the trainings that are missing, and print what was told of all."""
    out.mkdir(parents=True, exist_ok=True)
    log = out / "numerics_changes.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    told: dict[str, dict[str, str]] = {one["run"]: one["told"] for one in map(json.loads, lines)}
    for number in range(runs):
        if str(number) not in told:
            told[str(number)] = _run(number)
            with log.open("a") as opened:
                opened.write(json.dumps({"run": str(number), "told": told[str(number)]}) + "\n")
    missed = 0
    for change in _CHANGES:
        texts = [one[change] for one in told.values()]
        expected = "changed: * at step 1" if change == "changed" else change
        right = [text for text in texts if _is_right(change, text)]
        missed += len(texts) - len(right)
        others = Counter(text for text in texts if not _is_right(change, text))
        typer.echo(f"{expected}: {len(right)} of {len(texts)} {dict(others) or ''}".rstrip())
    sys.exit(missed > 0)


def _is_right(change: str, text: str) -> bool:
    return (
        text.startswith("changed: ") and " at step 1 " in text
        if change == "changed"
        else (text == change)
    )


def _run(number: int) -> dict[str, str]:
    """Return what is told of each change of one training."""
    draw = torch.Generator().manual_seed(number)
    code = _TRAINING.format(
        width=16 << int(torch.randint(4, (), generator=draw)),
        depth=1 + int(torch.randint(3, (), generator=draw)),
        dtype="float64" if number % 5 == 4 else "float32",
        optimizer=("SGD", "AdamW", "Adagrad")[number % 3],
        rate=(0.1, 0.001, 0.01)[number % 3],
        tells=number % 2 == 0,
    )
    base = [_launch(code, number) for _ in range(2)]
    told = {}
    for change, (before, after) in _CHANGES.items():
        assert before in code
        heads = [_launch(code.replace(before, after), number) for _ in range(2)]
        told[change] = str(describe_numerics_change(base, heads))
    return told


def _launch(code: str, seed: int) -> CellRun:
    """Return what a launch measured of the loop, its record as it travels."""
    names: dict[str, Any] = {}
    exec(code, names)
    seed_random_numbers(seed)
    user_code = UserCode(name="train", function=b"", kind="loop", num_steps=_NUM_STEPS)
    loop = UserLoop(user_code, names["train"], None, digests_weights=True)
    loop.run(_ask(), lambda: None)
    loop.check()
    losses, weights = loop.losses.by_step() or {}, loop.digests()
    record = {
        "losses": [*losses.values()],
        "losses_by_step": [*losses.items()],
        "weights": add_digests([tuple(weights.values())]),
        "weights_steps": [*weights],
        "recipe": None,
        "world_size": 1,
    }
    travelled = json.loads(msgspec.json.encode(record))
    return CellRun(outcome="passed", reason=None, rounds_s=(1.0,), record=travelled)


def _ask() -> Iterations[None]:
    for _ in range(_NUM_STEPS):
        yield untimed


if __name__ == "__main__":
    typer.run(main)
