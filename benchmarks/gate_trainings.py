"""Gates on one training in three forms, counted: a workload's cell, a user's loop, torchrun.

python benchmarks/gate_trainings.py twin slower --sessions 10 --out FOLDER

Each session gates a new repository with all three, of two ranks each. Its branch has a comment in
the model's file (`twin`), or 12 % more of a step in the model (`slower`). Each finished session is
a line of FOLDER/gate_trainings.jsonl, and a second start goes on. Prints the standard deviation of
pairs of each form, and exits with 1 where a verdict is wrong or a user's form is noisier than 1.5
times the workload's cell.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from session_log import SessionLog, commit, gate_command, git, run, template, verdicts

_TURNS: Final = 60_000
_PLANTED: Final = 0.12
_MOST_NOISE_RATIO: Final = 1.5
_MODEL = """
import torch
from perfsuite import Workload

TURNS = {turns}


class Network(torch.nn.Linear):
    def forward(self, inputs):
        total = 0
        for item in range(TURNS):
            total += item * item % 7
        return super().forward(inputs)


class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.full((256,), index / 4096), index % 10


workload = Workload(
    name="digits",
    build_model=lambda: Network(256, 10),
    build_dataset=lambda split: Digits(),
    loss=torch.nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    micro_batch_size=32,
)
"""
_TRAIN = """
import os

import torch
import torch.distributed as dist
from digits.model import Digits, Network


def main():
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Network(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = torch.utils.data.DistributedSampler(Digits())
    while True:
        for inputs, targets in torch.utils.data.DataLoader(Digits(), 32, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"""
_CELLS = """
from digits import train
from perfsuite import Recipe


def test_cell(train_benchmark):
    train_benchmark("digits.model:workload", Recipe(parallel="ddp:2"))


def test_loop(loop_benchmark):
    loop_benchmark(train.main, ranks=2, steps=200)


def test_command(command_benchmark):
    command_benchmark(["torchrun", "--nproc-per-node=2", "-m", "digits.train"], steps=200)
"""
_FILES: Final = {
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\nresults/\n",
    "digits/__init__.py": "",
    "digits/model.py": _MODEL.format(turns=_TURNS),
    "digits/train.py": _TRAIN,
    "benchmarks/test_training.py": _CELLS,
}
_FORMS: Final = ("cell", "loop", "command")
_CODES: Final = {"twin": 0, "slower": 10}


def main(
    kinds: Annotated[list[str], typer.Argument(help=f"Of {', '.join(_CODES)}.")],
    out: Annotated[Path, typer.Option(help="Folder of what is finished.")],
    sessions: Annotated[int, typer.Option(min=0, help="Of each kind.")] = 10,
) -> None:
    """Run the sessions that are missing, and print what all of them came to."""
    if unknown := [kind for kind in kinds if kind not in _CODES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_CODES)}")
    # For torchrun, whatever Python runs this.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    log = SessionLog(out.resolve(), "gate_trainings")
    for number in range(sessions):
        for kind in kinds:
            if sum(session["kind"] == kind for session in log.sessions) <= number:
                with tempfile.TemporaryDirectory(prefix="gate-trainings-") as folder:
                    typer.echo(_run_session(kind, Path(folder) / "digits", out.resolve(), log))
    sys.exit(_report(log.sessions))


def _run_session(kind: str, folder: Path, out: Path, log: SessionLog) -> str:
    """Gate a new repository, and write the session down."""
    shutil.copytree(template(out, _FILES), folder)
    turns = _slower_turns(folder) if kind == "slower" else _TURNS
    model = _MODEL.format(turns=turns) + "# a comment\n"
    commit(folder, kind, {"digits/model.py": model})
    result = folder.parent / "gate.json"
    ended = run(gate_command("benchmarks", "--json", str(result)), folder)
    left = git(folder, "status", "--porcelain")
    return log.add(kind, ended, verdicts(result), kind=kind, turns=turns, left=left)


def _slower_turns(folder: Path) -> int:
    """Return how many turns make a step slower by 12 %, by its stages when stored."""
    (stored,) = (folder / "baselines").rglob("*.json")
    cells = {cell["name"]: cell for cell in json.loads(stored.read_text())["benchmarks"]}
    forward_s = cells["test_cell"]["extra_info"]["perfsuite"]["stages_s"]["forward"]
    step_s = max(cell["stats"]["median"] for cell in cells.values())
    return round(_TURNS * (1 + _PLANTED * step_s / forward_s))  # nearly all of it is turns


def _report(sessions: list[dict[str, Any]]) -> bool:
    """Print what the sessions came to; return whether a limit is missed."""
    missed = [
        f"{one['output']}: exit code {one['exit_code']}, left {one['left']!r}"
        for one in sessions
        if one["exit_code"] != _CODES[one["kind"]] or one["has_traceback"] or one["left"]
    ]
    spread: dict[str, float] = {}
    for form in _FORMS:
        for kind in _CODES:
            cells = [
                cell
                for one in sessions
                for name, cell in one["cells"].items()
                if one["kind"] == kind and name.endswith(f"::test_{form}")
            ]
            words = Counter(cell["word"] for cell in cells)
            wanted = "PASS" if kind == "twin" else "FAIL"
            missed += [f"{form}, {kind}: {dict(words)}"] * (words[wanted] < words.total())
            typer.echo(f"{form}, {kind}: {dict(words)}, by {dict(Counter(c['by'] for c in cells))}")
            pairs = [[math.log(head / base) for base, head in c["raw"] or ()] for c in cells]
            variances = [statistics.variance(one) for one in pairs if len(one) > 1]
            if kind == "twin" and variances:
                spread[form] = math.sqrt(statistics.fmean(variances))
    for form, sd in spread.items():
        ratio = sd / spread["cell"]
        typer.echo(f"{form}: standard deviation of a pair {sd:.2%}, {ratio:.2f} of the cell's")
        missed += [f"{form}: {ratio:.2f} of the cell's noise"] * (ratio > _MOST_NOISE_RATIO)
    typer.echo(
        "\n".join([*sorted({one["host"] for one in sessions}), *(missed or ["as promised"])])
    )
    return bool(missed)


if __name__ == "__main__":
    typer.run(main)
