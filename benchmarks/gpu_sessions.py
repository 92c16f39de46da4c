"""The checks of gpu_acceptance.py that run whole sessions: the matrix, gates, a profile, a run."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from gpu_numerics import open_session
from session_log import Ended, commit, gate_command, git, must, run, verb_command, verdicts

from perfsuite.records.recipe import Recipe

_BENCHMARKS = Path(__file__).parent
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs")
_CELLS = """
import work
from perfsuite import Recipe


def test_lenet(train_benchmark):
    train_benchmark("lenet-digits", Recipe(precision="amp-bf16"))


def test_resnet(train_benchmark):
    train_benchmark("resnet18", Recipe(precision="tf32"))


def test_transformer(train_benchmark):
    train_benchmark("transformer-tiny", Recipe())
"""
_FILES = {
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\nresults/\n",
    "work.py": "",
    "benchmarks/test_training.py": _CELLS,
}


def matrix(figures: Any) -> None:
    folder = Path("matrix").resolve()
    options = ["--perf-require-gpus=1"] if figures.device.is_real else ["--perf-matrix=smoke"]
    ended = run([*_PYTEST, str(_BENCHMARKS), f"--perf-report={folder}", *options], _BENCHMARKS)
    Path("matrix.txt").write_text(ended.output)
    path = folder / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line in lines:
        needs_more = line["outcome"] == "skipped" and "GPUs, and " in (line["reason"] or "")
        is_right = line["outcome"] == "passed" or needs_more
        figures.must(line["fullname"], f"{line['outcome']}: {line['reason']}", is_right)
    figures.must("exit code", ended.exit_code, ended.exit_code == 0 and bool(lines))
    words = [line["outcome"] for line in lines]
    figures.told("cells", {word: words.count(word) for word in sorted(set(words))})


# --- gates ---


def _repository(name: str) -> Path:
    """Return a new one, its branch with a comment in a file that every cell loads."""
    folder = Path(name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "the package", _FILES)
    git(folder, "checkout", "--quiet", "-b", "change")
    commit(folder, "a comment", {"work.py": "# a comment\n"})
    return folder


def _gate(folder: Path, *options: str) -> tuple[Ended, dict[str, dict[str, Any]]]:
    result = folder.parent / f"{folder.name}.json"
    ended = run(gate_command("benchmarks", *options, "--json", str(result)), folder)
    result.with_suffix(".txt").write_text(ended.output)
    return ended, verdicts(result)


def a_a(figures: Any) -> None:
    folder = _repository("a-a")
    right = {"PASS", "INCONCLUSIVE"} if figures.device.is_real else {"PASS", "SKIPPED"}  # no tf32
    for number in range(2):
        began_s = time.monotonic()
        ended, cells = _gate(folder, "--seed", str(number), "--max-pairs", "6")
        took_s = time.monotonic() - began_s
        figures.must("exit code", ended.exit_code, ended.exit_code in (0, 11) and len(cells) == 3)
        figures.told("a session", f"{took_s:.0f} s")
        for name, cell in cells.items():
            figures.must(name.rpartition("::")[2], cell["word"], cell["word"] in right)
            ratios = [math.log(head / base) for base, head in cell["raw"] or ()]
            if len(ratios) > 1:
                told = f"mean {statistics.fmean(ratios):+.3%}, sd {statistics.stdev(ratios):.3%}"
                figures.told(f"{name.rpartition('::')[2]}, {len(ratios)} pairs", told)


def turns(figures: Any) -> None:
    folder = _repository("turns")
    _, cells = _gate(folder, "--max-pairs", "3")
    must([*_PYTEST, "benchmarks", "--perf-rounds=30"], folder)
    alone = json.loads((folder / "results" / "run.json").read_text())["benchmarks"]
    for benchmark in alone:
        alone_s = benchmark["stats"]["median"]
        pairs = cells[benchmark["fullname"]]["raw"]
        in_turns_s = statistics.median(seconds for pair in pairs for seconds in pair)
        figures.near(f"{benchmark['name']}, in turns over alone", in_turns_s, alone_s, 0.01)


# --- what is kept ---


def profile(figures: Any) -> None:
    session = open_session(figures.device)
    for parallel in ("single", "ddp:1"):
        taken = session.profile("lenet-digits", Recipe(parallel=parallel), num_epochs=2)
        epochs = taken.profile.epochs
        wall_s = sum(epoch.duration_s for epoch in epochs)
        stages_s = sum(time_s for epoch in epochs for _, time_s in epoch.stages_s.as_rows())
        figures.near(f"{parallel}: stages over the wall time", stages_s, wall_s, 0.01)
        operators = [one.name for one in taken.profile.operators or ()]
        figures.must(f"{parallel}: operators", operators[:3], bool(operators))
        figures.told(f"{parallel}: missing", taken.profile.missing or "nothing")
    session.close()


def baseline(figures: Any) -> None:
    folder = _repository("baseline")
    must([*_PYTEST, "benchmarks", "--benchmark-save=gpu"], folder)
    for words in (
        ["report", "results/run.json", "--html", "results/report"],
        ["calibrate", "benchmarks", "--sessions=0", "--identical=1", "--max-pairs=3"],
    ):
        ended = run(verb_command(*words), folder)
        figures.must(words[0], ended.output.strip()[-200:], ended.exit_code == 0)
    names = ("results/run.json", "results/report/index.html", "baselines/calibration.json")
    for name in names:
        file = folder / name
        size = file.stat().st_size if file.exists() else 0
        figures.must(name, f"{size} bytes", size > 0)
