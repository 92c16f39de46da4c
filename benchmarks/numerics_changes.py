"""What changed in a loop's mathematics, told of real trainings, counted.

python benchmarks/numerics_changes.py --runs 20 --out FOLDER

Of each run a training is written anew with another seed, shape, optimizer and dtype, and then in
five ways: with a variable renamed ("same bits"), with the terms of a sum in another order and by a
fused attention ("rounding"), and with a learning rate that is 10 % higher and a batch without its
last sequence ("changed" at step 1). The gradients of its keys' biases are 0 but for rounding, by
which all optimizers but SGD move them as far as any. Every other run tells no loss.

Steps, digests, records and the comparison are the gate's own; both arms of a pair run in this
process, one after the other. Each finished run is a line of FOLDER/numerics_changes.jsonl, and a
second start goes on. Exits with 1 where one is told otherwise.
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


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
        for part in self.parts:
            torch.nn.init.zeros_(part.bias)

    def forward(self, inputs):
        query, key, value = (part(inputs) for part in self.parts)
        shares = torch.softmax(query @ key.mT / inputs.shape[-1] ** 0.5, dim=-1)
        return inputs + shares @ value


def train():
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, {width}),
        *(
            layer({width})
            for _ in range({depth})
            for layer in (Sum, Attention, torch.nn.LayerNorm, lambda width: torch.nn.GELU())
        ),
        torch.nn.Linear({width}, 10),
    ).to(torch.{dtype})
    optimizer = torch.optim.{optimizer}(model.parameters(), lr={rate})
    while True:
        inputs = torch.randint(50, (8, 12))
        outputs = model(inputs).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(outputs, inputs.flatten() % 10)
        optimizer.zero_grad()
        loss.backward()
        if {tells}:
            perfsuite.log_loss(loss)
        optimizer.step()
"""
_FUSED: Final = "torch.nn.functional.scaled_dot_product_attention(query, key, value)"
# By name what is in the training, what takes its place, and what shall be told.
_CHANGES: Final = {
    "another name": ("outputs", "scores", "same bits"),
    "another order": ("(first + second) + third", "first + (second + third)", "rounding"),
    "a fused attention": ("shares @ value", _FUSED, "rounding"),
    "a higher rate": ("lr=", "lr=1.1 * ", "changed"),
    "a smaller batch": ("(8, 12))", "(8, 12))[:7]", "changed"),
}
# Each with the rate that it trains at.
_OPTIMIZERS: Final = {
    "SGD": 0.1,
    "AdamW": 0.001,
    "Adagrad": 0.01,
    "NAdam": 0.001,
    "RMSprop": 0.001,
    "Adamax": 0.002,
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
    for change, (*_, expected) in _CHANGES.items():
        texts = [one[change] for one in told.values()]
        others = Counter(text for text in texts if not _is_right(expected, text))
        missed += others.total()
        right = f"{expected} {len(texts) - others.total()} of {len(texts)}"
        typer.echo(f"{change}: {right} {dict(others) or ''}".rstrip())
    sys.exit(missed > 0)


def _is_right(expected: str, text: str) -> bool:
    if expected == "changed":
        return text.startswith("changed: ") and " at step 1 " in text
    return text == expected


def _run(number: int) -> dict[str, str]:
    """Return what is told of each change of one training."""
    draw = torch.Generator().manual_seed(number)
    optimizer, rate = [*_OPTIMIZERS.items()][number % len(_OPTIMIZERS)]
    code = _TRAINING.format(
        width=16 << int(torch.randint(4, (), generator=draw)),
        depth=1 + int(torch.randint(3, (), generator=draw)),
        dtype="float64" if number % 5 == 4 else "float32",
        optimizer=optimizer,
        rate=rate,
        tells=number // len(_OPTIMIZERS) % 2 == 0,
    )
    base = [_launch(code, number) for _ in range(2)]
    told = {}
    for change, (before, after, _) in _CHANGES.items():
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
