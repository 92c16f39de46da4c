"""The checks of gpu_acceptance.py that run whole sessions: the matrix, gates, a profile, a run."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_numerics import open_session
from session_log import Ended, commit, gate_command, git, must, run, verb_command, verdicts

from perfsuite.records.recipe import Recipe
from perfsuite.units import counted

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
# Adding to 1 GiB eighty times takes an H100 about 60 ms, and the host about 1 ms. Another arm that
# used the memory meanwhile would make it slower, unlike a kernel that only waits; and it hardly
# depends on the clock, which falls under products of matrices.
_DEVICE_BOUND_CELLS = """
import time

import torch
import work


def make_step():
    if not torch.cuda.is_available():

        def step():
            time.sleep(0.02)
            return torch.zeros(())

        return step
    values = torch.zeros(2**28, device="cuda")

    def step():
        for _ in range(80):
            values.add_(1.0)
        return values[0]

    return step


def test_plain(benchmark):
    step = make_step()
    benchmark(lambda: step().item())


def test_step(step_benchmark):
    step_benchmark(make_step)
"""
_FILES = {
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "__pycache__/\n.pytest_cache/\nresults/\n*.txt\n",
    "work.py": "",
}


def matrix(figures: Any) -> None:
    folder = Path("matrix").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    options = ["--perf-require-gpus=1"] if figures.device.is_real else ["--perf-matrix=smoke"]
    options += ["--benchmark-save=gpu", f"--benchmark-storage=file://{folder}/baselines"]
    command = [*_PYTEST, str(_BENCHMARKS), f"--perf-report={folder}", *options]
    try:
        ended = run(command, _BENCHMARKS, output=Path("matrix.txt").resolve())
    finally:
        _judge_cells(figures, folder / "cells.jsonl")
    figures.must("exit code", ended.exit_code, ended.exit_code == 0)
    _judge_saved(figures, folder / "baselines")
    _judge_verb(figures, "report", folder / "run.json", "--html", folder / "report", cwd=folder)
    _judge_files(figures, folder, "run.json", "report/index.html")


def _judge_cells(figures: Any, path: Path) -> None:
    """Judge what there is of a session, even where it was cut off."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for line in lines:
        needs_more = line["outcome"] == "skipped" and "GPUs, and " in (line["reason"] or "")
        is_right = line["outcome"] == "passed" or needs_more
        figures.must(line["fullname"], f"{line['outcome']}: {line['reason']}", is_right)
    words = [line["outcome"] for line in lines]
    figures.must("cells", {word: words.count(word) for word in sorted(set(words))}, bool(words))


def _judge_saved(figures: Any, storage: Path) -> None:
    """Judge that `--benchmark-save=gpu` saved one run, and tell of which commit it is."""
    saved = sorted(storage.rglob("*_gpu.json"))
    figures.must("saved", [str(file.relative_to(storage)) for file in saved], len(saved) == 1)
    for file in saved:
        info = json.loads(file.read_text())["commit_info"]
        state = "with changes that are not in it" if info["dirty"] else "clean"
        figures.told("saved of commit", f"{info['id']}, {state}")


def _judge_verb(figures: Any, verb: str, *arguments: object, cwd: Path) -> None:
    ended = run(verb_command(verb, *map(str, arguments)), cwd, output=cwd / f"{verb}.txt")
    figures.must(verb, ended.output.strip()[-200:], ended.exit_code == 0)


def _judge_files(figures: Any, folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        size = file.stat().st_size if file.exists() else 0
        figures.must(name, f"{size} bytes", size > 0)


# --- gates ---


def _repository(name: str, cells: str = _CELLS) -> Path:
    """Return a new one, its branch with a comment in a file that every cell loads."""
    folder = Path(name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "the package", _FILES | {"benchmarks/test_training.py": cells})
    git(folder, "checkout", "--quiet", "-b", "change")
    commit(folder, "a comment", {"work.py": "# a comment\n"})
    return folder


def _gate(figures: Any, folder: Path, *options: str) -> tuple[Ended, dict[str, dict[str, Any]]]:
    """Gate a repository; where that is cut off, tell the pairs that it had."""
    result = folder.parent / f"{folder.name}.json"
    command = gate_command("benchmarks", *options, "--json", str(result))
    try:
        ended = run(command, folder, output=result.with_suffix(".txt"))
    except SystemExit:
        for name, cell in _kept_cells(folder / "results" / "pairs.json"):
            _tell_pairs(figures, f"{name}, cut off", cell["raw"])
        raise
    return ended, verdicts(result)


def _kept_cells(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return what a gate has kept for its next session: cells that are open, or failed."""
    comparisons = json.loads(path.read_text())["comparisons"] if path.exists() else []
    return [item for comparison in comparisons for item in comparison["cells"].items()]


def _tell_pairs(figures: Any, name: str, pairs: Sequence[Sequence[float]] | None) -> None:
    ratios = [math.log(head / base) for base, head in pairs or ()]
    if ratios:
        spread = f", sd {statistics.stdev(ratios):.3%}" if len(ratios) > 1 else ""
        told = f"mean {statistics.fmean(ratios):+.3%}{spread}"
        figures.told(f"{name.rpartition('::')[2]}, {counted(len(ratios), 'pair')}", told)


def a_a(figures: Any) -> None:
    right = {"PASS", "INCONCLUSIVE"} if figures.device.is_real else {"PASS", "SKIPPED"}  # no tf32
    for number in range(2):
        # In the first one's folder the second would go on from its pairs, and be no other draw.
        folder = _repository(f"a-a-{number}")
        began_s = time.monotonic()
        options = ("--max-pairs", "6", "--max-minutes", "2")
        ended, cells = _gate(figures, folder, "--seed", str(number), *options)
        took_s = time.monotonic() - began_s
        figures.must("exit code", ended.exit_code, ended.exit_code in (0, 11) and len(cells) == 3)
        figures.told("a session", f"{took_s:.0f} s")
        for name, cell in cells.items():
            said = f"{cell['word']}: {cell['reason']}" if cell["reason"] else cell["word"]
            figures.must(name.rpartition("::")[2], said, cell["word"] in right)
            _tell_pairs(figures, name, cell["raw"])


def turns(figures: Any) -> None:
    folder = _repository("turns", _DEVICE_BOUND_CELLS)
    _, cells = _gate(figures, folder, "--max-pairs", "3", "--max-minutes", "1.5")
    must([*_PYTEST, "benchmarks", "--perf-rounds=30"], folder)
    alone = json.loads((folder / "results" / "run.json").read_text())["benchmarks"]
    for benchmark in alone:
        compare_with_turns(figures, benchmark, cells.get(benchmark["fullname"], {}))


def compare_with_turns(figures: Any, alone: dict[str, Any], gated: dict[str, Any]) -> None:
    """Judge whether a cell is as fast beside another arm as alone."""
    times_s = [seconds for pair in gated.get("raw") or () for seconds in pair]
    if not times_s:
        why = f"{gated.get('word', 'no verdict')}: {gated.get('reason')}"
        figures.must(f"{alone['name']}, in turns", why, False)
        return
    what = f"{alone['name']}, in turns over alone"
    figures.near(what, statistics.median(times_s), alone["stats"]["median"], 0.01)


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
    _judge_saved(figures, folder / "baselines")
    _judge_verb(figures, "report", "results/run.json", "--html", "results/report", cwd=folder)
    options = ("benchmarks", "--sessions=0", "--identical=1", "--max-pairs=3")
    _judge_verb(figures, "calibrate", *options, cwd=folder)
    made = ("results/run.json", "results/report/index.html", "baselines/calibration.json")
    _judge_files(figures, folder, *made)
