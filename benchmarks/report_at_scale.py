"""What a report of very many cells costs: seconds to make it, and the size of its page.

Times are made up, everything else is as in a run of this project. Prints a line, or with --keep
leaves the run and its report in a folder to look at. With --browser (Chromium, as the tests of the
page need it) also how long a reader waits: for the page, for a filter, for all rows again, for a
sorted column.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path
from statistics import median
from typing import Any

from perfsuite.records.recipe import Recipe
from perfsuite.report.formats.folder import write_folder
from perfsuite.report.model import report_on_runs
from perfsuite.report.runs import read_runs

# In a browser: from a keystroke or a click to the second frame after it.
WAIT = """([selector, value]) => new Promise(resolve => {
    const element = document.querySelector(selector);
    const start = performance.now();
    if (value === null) element.click();
    else { element.value = value; element.dispatchEvent(new Event("input")); }
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - start)));
})"""
MODES = ("single", "ddp:1", "ddp:2", "ddp:4", "ddp:8", "fsdp:2", "fsdp:4", "pp:2")
PRECISIONS = ("fp32", "amp-bf16")
CHECKPOINTING = ("none", "every-block")
NUM_WORKERS = (0, 1, 2, 4, 8)
COMPUTE_S = 0.004


def recipes() -> Iterator[tuple[str, Recipe]]:
    """Yield workloads with recipes without end: another workload after each whole matrix."""
    for number in count():
        for parallel, precision, checkpointing, workers in product(
            MODES, PRECISIONS, CHECKPOINTING, NUM_WORKERS
        ):
            yield (
                f"workload-{number}",
                Recipe(
                    parallel=parallel,
                    precision=precision,
                    checkpointing=checkpointing,
                    num_workers=workers,
                ),
            )


def make_record(name: str, recipe: Recipe, rng: random.Random) -> dict[str, Any]:
    """Return `extra_info["perfsuite"]` of a cell that trained."""
    size = recipe.plan.size
    is_checkpointed = recipe.checkpointing != "none"
    forward_s = COMPUTE_S / 3 * (0.8 if recipe.precision == "amp-bf16" else 1.0)
    stages_s = {
        "load": 0.006 / (1 + 2 * recipe.num_workers) + 0.0002 * recipe.num_workers,
        "forward": forward_s,
        "backward": (3 if is_checkpointed else 2) * forward_s * (1 + 0.1 * (size - 1)),
        "optimizer": 0.0002,
        "evaluation": None,
        "other": 0.0001,
    }
    ratio = rng.lognormvariate(0.0, 0.02)
    word = "FAIL" if ratio > 1.04 else "INCONCLUSIVE" if ratio > 1.03 else "PASS"
    return {
        "schema": 1,
        "workload": name,
        "recipe": recipe.as_dict(),
        "device": "cpu",
        "world_size": recipe.plan.world_size,
        "exercised": True,
        "fingerprint": "0123456789ab",
        "numerics": {
            "status": "equivalent",
            "check": "T0",
            "error": 0.0,
            "limit": 3.4e-07,
            "power": "5/5",
        },
        "stages_s": stages_s,
        "counts": {
            "flops": 72_445_440,
            "ops": 177,
            "collectives": size - 1,
            "collective_bytes": 246_824 * (size - 1),
            "saved_activation_bytes": 1_000_000 // (2 if is_checkpointed else 1),
            "kernel_launches": None,
        },
        "memory": {
            "metric": "live_storage_peak",
            "peak_bytes": 2_700_000 // (2 if is_checkpointed else 1),
            "per_rank": [2_700_000],
        },
        "samples_per_s": None,  # known with the rounds
        "losses": [2.3 - 0.1 * step * rng.random() for step in range(4)],
        "verdict": {
            "word": word,
            "by": "pairs",
            "ratio": ratio,
            "interval": [ratio - 0.015, ratio + 0.015],
            "pairs": 4,
            "detectable": 0.03,
        },
    }


def make_run(num_cells: int, num_rounds: int, rng: random.Random, day: int) -> dict[str, Any]:
    """Return what pytest-benchmark would have stored."""
    benchmarks = []
    for name, recipe in islice(recipes(), num_cells):
        record = make_record(name, recipe, rng)
        step_s = sum(seconds for seconds in record["stages_s"].values() if seconds is not None)
        rounds_s = [step_s * rng.lognormvariate(0.0, 0.05) for _ in range(num_rounds)]
        record["samples_per_s"] = 32 * recipe.plan.data_parallel_size / median(rounds_s)
        label = (
            f"{name}-{recipe.parallel}-{recipe.precision}-{recipe.checkpointing}"
            f"-{recipe.num_workers}"
        )
        benchmarks.append(
            {
                "fullname": f"benchmarks/test_training_step.py::test_training_step[{label}]",
                "stats": {"median": median(rounds_s), "data": rounds_s},
                "extra_info": {"perfsuite": record},
            }
        )
    return {
        "datetime": f"2026-11-{day:02d}T12:00:00+00:00",
        "commit_info": {"id": f"{rng.randrange(16**40):040x}", "dirty": False},
        "machine_info": {"cpu": {"brand_raw": "made up"}, "system": "Linux"},
        "benchmarks": benchmarks,
    }


def time_page(path: Path) -> None:
    """Print what a reader of the page waits for."""
    # One browser for the tests and for this.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
    from browser import open_browser

    with open_browser() as browser:
        page = browser.new_page()
        start = time.perf_counter()
        page.goto(path.resolve().as_uri())
        waits_ms = {"page": 1e3 * (time.perf_counter() - start)}
        for what, selector, value in (
            ("filter to some", "#filter", "ddp:2"),
            ("filter to few", "#filter", "ddp:2 amp-bf16 every-block"),
            ("all again", "#filter", ""),
            ("sort by a number", "thead th:nth-child(5) button", None),
            ("sort by name", "thead th:nth-child(1) button", None),
        ):
            waits_ms[what] = page.evaluate(WAIT, [selector, value])
    print(", ".join(f"{what} {wait_ms:.0f} ms" for what, wait_ms in waits_ms.items()))


def main() -> None:
    """Make the runs and their report, and print what the report cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--browser", action="store_true", help="time the page in Chromium")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave everything there")
    arguments = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"run-{day}.json" for day in range(1, arguments.runs + 1)]
        for day, path in enumerate(paths, 1):
            run = make_run(arguments.cells, arguments.rounds, rng, day)
            path.write_text(json.dumps(run), encoding="utf-8")
        start = time.perf_counter()
        report = report_on_runs(read_runs(paths))
        write_folder(report, folder / "report")
        seconds = time.perf_counter() - start
        size = (folder / "report" / "index.html").stat().st_size
        print(
            f"{arguments.cells} cells x {arguments.rounds} rounds, {arguments.runs} runs: "
            f"{seconds:.1f} s, page of {size / 1e6:.1f} MB"
        )
        if arguments.browser:
            time_page(folder / "report" / "index.html")


if __name__ == "__main__":
    main()
