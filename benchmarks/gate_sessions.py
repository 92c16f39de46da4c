"""Gates that really run, counted: false alarms, slowdowns found, pairs, seconds, forecasts.

python benchmarks/gate_sessions.py twin slower docs one-module --sessions 20 --out FOLDER

Each session gates a new repository of four cells: training in one process and on two ranks, a
loader with a worker, and a plain benchmark. Its branch is, by the kind of session:

- `twin`: a comment in a module that every cell loads, so that pairs decide;
- `slower`: 5 % more in the training step of one process, that cell alone;
- `docs`: documentation alone;
- `one-module`: a comment in a module that only the plain benchmark loads.

`smoke` gates the smoke matrix of this repository against a clone with a comment in a file that all
of its cells load. Kinds take turns. Each finished session is a line of FOLDER/gate_sessions.jsonl,
and a second start goes on. Exits with 1 where a limit is missed.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from session_log import PYTEST, SessionLog, commit, gate_command, git, must, run, template, verdicts

_TURNS: Final = 60_000
_WORK = """
TURNS = {turns}


def work(turns=TURNS):
    total = 0
    for item in range(turns):
        total += item * item % 7
    return total
"""
_NETWORK = """
import torch
from digits import work
from perfsuite import Workload


class Network(torch.nn.Linear):
    def forward(self, inputs):
        work.work()
        return super().forward(inputs)


class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        work.work(200)
        return torch.full((256,), index / 4096), index % 10


workload = Workload(
    name="digits",
    build_model=lambda: Network(256, 10),
    build_dataset=lambda split: Digits(),
    loss=torch.nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    micro_batch_size=64,
)
"""
_TRAINING_CELLS = """
from digits import work
from perfsuite import Recipe

WORKLOAD = "digits.network:workload"


def test_single(train_benchmark):
    train_benchmark(WORKLOAD, Recipe())


def test_ranks(train_benchmark):
    train_benchmark(WORKLOAD, Recipe(parallel="ddp:2"))


def test_loader(loader_benchmark):
    loader_benchmark(WORKLOAD, Recipe(num_workers=1, persistent_workers=True))
"""
_PLAIN_CELL = """
from digits import scales


def test_weigh(benchmark):
    benchmark(scales.weigh)
"""
_FILES: Final = {
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\nresults/\n",
    "README.md": "digits\n",
    "digits/__init__.py": "",
    "digits/work.py": _WORK.format(turns=_TURNS),
    "digits/scales.py": "from digits.work import work\n\n\ndef weigh():\n    return work()\n",
    "digits/network.py": _NETWORK,
    "benchmarks/test_training.py": _TRAINING_CELLS,
    "benchmarks/test_plain.py": _PLAIN_CELL,
}
_SINGLE: Final = "benchmarks/test_training.py::test_single"
_PLANTED: Final = 0.05
_CHANGED: Final = {"twin": "digits/work.py", "docs": "README.md", "one-module": "digits/scales.py"}
_CODES: Final = {"twin": 0, "slower": 10, "docs": 0, "one-module": 0, "smoke": 0}
_DOCS_MAX_S: Final = 10.0
_SMOKE_MAX_S: Final = 200.0
# Every rank of the smoke matrix loads it, and so does its loader.
_LOADED_BY_ALL: Final = "perfsuite/worker/main.py"


def main(
    kinds: Annotated[list[str], typer.Argument(help=f"Of {', '.join(_CODES)}.")],
    out: Annotated[Path, typer.Option(help="Folder of what is finished.")],
    sessions: Annotated[int, typer.Option(min=0, help="Of each kind.")] = 20,
) -> None:
    """Run the sessions that are missing, and print what all of them came to."""
    if unknown := [kind for kind in kinds if kind not in _CODES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_CODES)}")
    out = out.resolve()
    log = SessionLog(out, "gate_sessions")
    for number in range(sessions):
        for kind in kinds:
            if sum(session["kind"] == kind for session in log.sessions) <= number:
                with tempfile.TemporaryDirectory(prefix="gate-sessions-") as folder:
                    typer.echo(_run_session(kind, Path(folder) / "digits", out, log))
    sys.exit(_report(log.sessions))


def _run_session(kind: str, folder: Path, out: Path, log: SessionLog) -> str:
    """Gate a new repository, and write the session down."""
    if kind == "smoke":
        git(folder.parent, "clone", "--quiet", str(Path(__file__).parent.parent), str(folder))
        _append(folder, _LOADED_BY_ALL)
        ended = run(
            [*PYTEST, "--benchmark-compare", "--perf-matrix=smoke", "--perf-base=HEAD~1"], folder
        )
        return log.add(kind, ended, verdicts(folder / "results" / "run.json"), kind=kind)
    shutil.copytree(template(out, _FILES), folder)
    options = {"twin": ["--identical", "judge"], "slower": ["-k", "test_single"]}.get(kind, [])
    fields: dict[str, Any] = {}
    if kind == "slower":
        fields["turns"] = turns = _slower_turns(folder)
        commit(folder, "slower", {"digits/work.py": _WORK.format(turns=turns)})
    else:
        _append(folder, _CHANGED[kind])
    if kind == "docs":
        fields["collect_s"] = must([*PYTEST, "--collect-only", "--quiet"], folder).took_s
        fields["plain_s"] = must(PYTEST, folder).took_s
        compared = run([*PYTEST, "--benchmark-compare"], folder)
        fields |= {"compared_s": compared.took_s, "compared_code": compared.exit_code}
    result = folder.parent / "gate.json"
    ended = run(gate_command("benchmarks", *options, "--json", str(result)), folder)
    return log.add(kind, ended, verdicts(result), kind=kind, **fields)


def _append(folder: Path, name: str) -> None:
    commit(folder, "a change", {name: (folder / name).read_text() + "# a comment\n"})


def _slower_turns(folder: Path) -> int:
    """Return how many turns make a training step slower by 5 %, by its stages when stored."""
    (stored,) = (folder / "baselines").rglob("*.json")
    cells = {cell["name"]: cell for cell in json.loads(stored.read_text())["benchmarks"]}
    single = cells["test_single"]
    forward_s = single["extra_info"]["perfsuite"]["stages_s"]["forward"]  # nearly all of it work
    return round(_TURNS * (1 + _PLANTED * single["stats"]["median"] / forward_s))


def _report(sessions: list[dict[str, Any]]) -> bool:
    """Print what the sessions came to; return whether a limit is missed."""
    missed: list[str] = []
    for kind in _CODES:
        of_kind = [session for session in sessions if session["kind"] == kind]
        words = Counter(cell["word"] for one in of_kind for cell in one["cells"].values())
        took_s = [one["took_s"] for one in of_kind]
        if kind == "twin" and words["INCONCLUSIVE"] > 0.05 * words.total():
            missed.append(f"twin: {words['INCONCLUSIVE']} of {words.total()} INCONCLUSIVE")
        missed += [f"{one['output']}: {why}" for one in of_kind for why in _why_wrong(kind, one)]
        if of_kind:
            pairs = [[cell["pairs"] or 0 for cell in one["cells"].values()] for one in of_kind]
            typer.echo(
                f"{kind}: {len(of_kind)} sessions, exit codes "
                f"{dict(Counter(one['exit_code'] for one in of_kind))}, {dict(words)}, "
                f"median {statistics.median(took_s):.0f} s, at most {max(took_s):.0f} s\n"
                f"  pairs of each: {pairs}"
            )
    for kind in ("twin", "slower"):
        for line in _spreads(one for one in sessions if one["kind"] == kind):
            typer.echo(f"{kind}, {line}")
    for when in ("stored", "pair"):
        forecasts = [one["forecasts"].get(when) for one in sessions if one["exit_code"] == 0]
        shares = [took_s / said_s for said_s, took_s in filter(None, forecasts)]
        kept = sum(0.5 <= share <= 1.5 for share in shares)
        text = f"forecasts ({when}) within 50 %: {kept} of {len(shares)}"
        typer.echo(
            text
            + (
                f", took {min(shares, default=1):.2f} to {max(shares, default=1):.2f} of it"
                * bool(shares)
            )
        )
        missed += [text] * (when == "stored" and kept < 0.9 * len(shares))
    typer.echo(
        "\n".join([*sorted({one["host"] for one in sessions}), *(missed or ["as promised"])])
    )
    return bool(missed)


def _why_wrong(kind: str, session: Mapping[str, Any]) -> list[str]:
    """Return what a session promised and did not keep."""
    cells = session["cells"]
    code = session["exit_code"]
    by = Counter(cell["by"] for cell in cells.values())
    broken = {f"exit code {code}": code != _CODES[kind], "a traceback": session["has_traceback"]}
    if kind == "twin" and code == 11:  # a share of all verdicts may be inconclusive
        broken[f"exit code {code}"] = False
    if kind in ("twin", "smoke", "slower"):
        broken[f"not all by pairs: {dict(by)}"] = {*by} != {"pairs"}
    if kind == "one-module":
        broken[f"judged otherwise: {dict(by)}"] = by != {"identical": 3, "pairs": 1}
    if kind == "smoke":
        broken[f"took {session['took_s']} s"] = session["took_s"] > _SMOKE_MAX_S
    if kind == "docs":
        gate_s = session["took_s"] - session["collect_s"]
        more_s = session["compared_s"] - session["plain_s"]
        broken[f"{gate_s:.0f} s after collection"] = gate_s > _DOCS_MAX_S
        broken[f"pytest took {more_s:.0f} s more"] = more_s > _DOCS_MAX_S
        broken[f"pytest ended in {session['compared_code']}"] = session["compared_code"] != 0
        broken[f"it launched: {dict(by)}"] = by != {"identical": 4} or bool(session["forecasts"])
    return [why for why, is_so in broken.items() if is_so]


def _spreads(sessions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the spread of each cell's change between sessions, beside what its pairs explain."""
    means: dict[str, list[float]] = defaultdict(list)
    squares: dict[str, list[float]] = defaultdict(list)
    for session in sessions:
        for name, cell in session["cells"].items():
            pairs = [math.log(head / base) for base, head in cell["raw"] or ()]
            if len(pairs) > 1:
                means[name].append(statistics.fmean(pairs))
                squares[name].append(statistics.variance(pairs) / len(pairs))
    return [
        f"{name}: mean {statistics.fmean(found):+.2%}, spread between sessions "
        f"{statistics.stdev(found):.2%}, {math.sqrt(statistics.fmean(squares[name])):.2%} of it "
        "explained by the pairs within"
        for name, found in means.items()
        if len(found) > 1
    ]


if __name__ == "__main__":
    typer.run(main)
