"""What screening very many cells against very many stored sessions costs: seconds and memory.

python benchmarks/screen_at_scale.py

Makes a repository with a commit for each session and a store of them, as pytest-benchmark and
perfsuite write them, and screens a further session in a process of its own, by what a gate calls.
Times are made up, and so is what the sessions are refused for: every fifth ran elsewhere, every
fiftieth failed a test. Exits with 1 where the promise does not hold. Needs 7 MB for each session
of 2,000 cells.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from pytest_benchmark.stats import Stats
from pytest_benchmark.utils import get_machine_id
from report_at_scale import make_record, recipes

from perfsuite.gate.baselines.screen import NUM_SEARCHED
from perfsuite.gate.baselines.stored_verdict import read_history
from perfsuite.gate.git.repository import Base
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.plugin.session.saving import put_stamp
from perfsuite.records.cell import CellRecord
from perfsuite.records.run_file import RunStamp, StoredCell
from perfsuite.system.environment import describe_host

COUNTED = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0, slacks=({},))
PROMISED_S = 10.0
PROMISED_BYTES = 500 * 10**6

HERE = describe_host({}, 2)
ELSEWHERE = "ba9876543210"
PROBE_S = {"interpreter": 0.03, "memory": 0.04}
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
# Of a session, and of a cell in it.
SESSION_SD, CELL_SD = 0.002, 0.003
OPERATORS = (
    "mm",
    "addmm",
    "conv2d",
    "relu",
    "add_",
    "mul",
    "copy_",
    "sum",
    "div",
    "native_dropout",
)
# Different contents; a screen looks at fewer.
NUM_BODIES = NUM_SEARCHED + 6


def names(num_cells: int) -> list[str]:
    """Return the cells' node ids."""
    return [
        "benchmarks/test_training_step.py::test_training_step"
        f"[{name}-{recipe.parallel}-{recipe.precision}-{recipe.checkpointing}-{recipe.num_workers}]"
        for name, recipe in islice(recipes(), num_cells)
    ]


def records(num_cells: int) -> Iterator[dict[str, Any]]:
    """Yield `extra_info["perfsuite"]` of each cell, the same in every session."""
    rng = random.Random(0)
    for name, recipe in islice(recipes(), num_cells):
        operators = [
            {"name": f"aten::{name}", "calls": 4, "self_s": 0.001 * rng.random()}
            for name in OPERATORS
        ]
        yield {**make_record(name, recipe, rng), "verdict": None, "operators": operators}


def median_s(record: dict[str, Any], rng: random.Random, shift: float) -> float:
    """Return the time of a cell in a session that is `shift` slower than usual, as a logarithm."""
    step_s = sum(filter(None, record["stages_s"].values()))
    return step_s * math.exp(shift + rng.gauss(0, CELL_SD))


def benchmarks(num_cells: int, rng: random.Random) -> list[dict[str, Any]]:
    """Return the benchmarks of a session as pytest-benchmark describes them."""
    shift = rng.gauss(0, SESSION_SD)
    made = []
    for fullname, record in zip(names(num_cells), records(num_cells), strict=True):
        stats = Stats()
        middle_s = median_s(record, rng, shift)
        for round_s in (middle_s * (1 + 0.01 * (number - 4.5)) for number in range(10)):
            stats.update(round_s)
        made.append(
            {
                "group": None,
                "name": fullname.rpartition("::")[2],
                "fullname": fullname,
                "params": record["recipe"],
                "param": fullname.rpartition("[")[2].removesuffix("]"),
                "extra_info": {"perfsuite": record},
                "options": {
                    "disable_gc": False,
                    "timer": "rank_clock",
                    "min_rounds": 5,
                    "max_time": 1.0,
                    "min_time": 5e-06,
                    "warmup": False,
                },
                "stats": {**stats.as_dict(), "iterations": 1},
            }
        )
    return made


def make_commits(root: Path, number: int) -> list[str]:
    """Make a repository, and return its commits, the newest last."""
    stream = "".join(
        f"commit refs/heads/main\nmark :{n}\ncommitter a <a@example.org> {n} +0000\ndata 1\n.\n"
        for n in range(1, number + 1)
    )
    git = ("git", "-C", str(root))
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(root)], check=True)
    subprocess.run([*git, "fast-import", "--quiet"], input=stream.encode(), check=True)
    listed = subprocess.run(
        [*git, "rev-list", "--reverse", "main"], check=True, capture_output=True, text=True
    )
    return listed.stdout.split()


def newest_commit(root: Path) -> str:
    """Return the commit that a session would be compared with."""
    command = ("git", "-C", str(root), "rev-parse", "main")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def stamp(number: int, cells: Sequence[str]) -> RunStamp:
    """Return the stamp of a session."""
    return RunStamp(
        fingerprint=ELSEWHERE if number % 5 == 0 else HERE.fingerprint,
        probe_s=PROBE_S,
        num_failed=int(number % 50 == 1),
        is_pull_request=False,
        verdicts=dict.fromkeys(cells, "PASS"),
        accepted=(),
        durations_s=dict.fromkeys(cells, 3.217),
    )


def make_store(root: Path, num_cells: int, num_sessions: int) -> None:
    """Store the sessions, each at a commit of its own."""
    folder = root / "baselines" / get_machine_id()
    folder.mkdir(parents=True)
    rng = random.Random(1)
    mark = '"benchmarks": []'
    bodies = [
        json.dumps({"benchmarks": benchmarks(num_cells, rng)}, indent=4)[2:-2].lstrip()
        for _ in range(min(NUM_BODIES, num_sessions))
    ]
    cells = names(num_cells)
    for number, commit in enumerate(make_commits(root, num_sessions), 1):
        run: dict[str, Any] = {
            "machine_info": {"node": "made-up", "system": "Linux", "cpu": {"count": 2}},
            "commit_info": {"id": commit, "dirty": False, "branch": "main"},
            "benchmarks": [],
            "datetime": str(BEGAN + timedelta(hours=number)),
            "version": "5.3.1",
        }
        put_stamp(run, stamp(number, cells))
        text = json.dumps(run, indent=4).replace(mark, bodies[number % len(bodies)])
        (folder / f"{number:04}_main.json").write_text(text)


def screen_session(root: Path, num_cells: int) -> dict[str, Any]:
    """Screen a session as a gate does, and return what it came to and what it cost."""
    began_s = time.perf_counter()
    history = read_history(
        root,
        root / "baselines",
        True,
        HERE,
        base=Base(revision=newest_commit(root), described="the newest commit"),
        probe=lambda: PROBE_S,
    )
    read_s = time.perf_counter()
    rng = random.Random(2)
    words: Counter[str] = Counter()
    for name, plain in zip(names(num_cells), records(num_cells), strict=True):
        assert history.can_screen(name)
        record = msgspec.convert(plain, CellRecord)
        cell = StoredCell(
            median_s=median_s(plain, rng, 0.0),
            fingerprint=record.fingerprint,
            counts=record.counts,
            memory=record.memory,
        )
        grown = history.find_increases(name, cell, COUNTED, print)
        verdict = None
        if not grown:
            verdict = history.screen(name, cell, None, COUNTED, lambda _: None)
        words["for the judge" if verdict is None else verdict.word] += 1
    return {
        "words": words,
        "num_runs": len(history.runs),
        "num_refused": len(history.refused),
        "read_s": read_s - began_s,
        "screen_s": time.perf_counter() - read_s,
        "cpu_s": time.process_time(),
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    """Return the most memory of this process; what getrusage tells begins with its parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


def measure(root: Path, num_cells: int) -> tuple[float, dict[str, Any]]:
    """Screen in a fresh interpreter; return its seconds from start to end, and what it says."""
    began_s = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, __file__, "--screen", str(root), "--cells", str(num_cells)],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - began_s, json.loads(ended.stdout)


def main() -> None:
    """Make the store, screen, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make or use the store there")
    parser.add_argument("--screen", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.screen:
        print(json.dumps(screen_session(arguments.screen, arguments.cells)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        root: Path = arguments.keep or Path(temporary)
        if not (root / "baselines").exists():
            root.mkdir(parents=True, exist_ok=True)
            make_store(root, arguments.cells, arguments.sessions)
        size = sum(path.stat().st_size for path in (root / "baselines").rglob("*.json"))
        results = [measure(root, arguments.cells) for _ in range(arguments.repeats)]
    wall_s = statistics.median(seconds for seconds, _ in results)
    found = results[-1][1]
    peak = max(one["peak_bytes"] for _, one in results)
    print(
        f"{arguments.cells} cells x {arguments.sessions} sessions, {size / 1e9:.2f} GB: "
        f"{wall_s:.1f} s, of which {found['read_s']:.1f} s choosing and reading "
        f"{found['num_runs']} runs and {found['screen_s']:.1f} s screening; "
        f"{found['cpu_s']:.1f} s of processor time in all; peak {peak / 1e6:.0f} MB\n"
        f"{found['num_refused']} newer runs refused; "
        + ", ".join(f"{number} {word}" for word, number in found["words"].items())
    )
    sys.exit(wall_s > PROMISED_S or peak > PROMISED_BYTES)


if __name__ == "__main__":
    main()
