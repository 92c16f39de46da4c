"""The verb `sweep`: what it asks for, prints and writes. Must not know how times are weighed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.cli.options import DeviceName, DrawnSeed, WorkloadName, open_session
from perfsuite.errors import SettingError
from perfsuite.experiments.interleave import ROUND_S
from perfsuite.experiments.sweep import Curve, Sweep, advise, find_good, sweep_workers
from perfsuite.gate.judge.trial import draw_seed
from perfsuite.records.recipe import Recipe
from perfsuite.report.formats.html import svg_file
from perfsuite.report.terminal.sweep import draw_sweep, sweep_table
from perfsuite.system.files import check_writable, write_atomically

PICTURE_FILE = Path("results") / "sweep.svg"
_DEFAULT_COUNTS = "0..10"
# Of weights and data; --seed is of the order of launches.
_CELL_SEED = 0
# More loader processes than this for one rank is a mistyped number.
_MOST_WORKERS = 256


def sweep(
    workload: WorkloadName,
    num_workers: Annotated[
        str, typer.Option(metavar="A..B", help="Numbers of workers: 0..10, or 0,1,2,4.")
    ] = _DEFAULT_COUNTS,
    parallel: Annotated[str, typer.Option(help="As in a recipe.")] = "single",
    precision: Annotated[str, typer.Option(help="As in a recipe.")] = "fp32",
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Samples of a batch; the workload's unless given.")
    ] = None,
    persistent_workers: Annotated[
        bool, typer.Option("--persistent-workers", help="Keep workers from epoch to epoch.")
    ] = False,
    pin_memory: Annotated[
        bool, typer.Option("--pin-memory", help="Load into page-locked memory.")
    ] = False,
    non_blocking: Annotated[
        bool, typer.Option("--non-blocking", help="Copy to the device without waiting.")
    ] = False,
    prefetch_factor: Annotated[
        int | None, typer.Option(help="Batches that each worker loads ahead.")
    ] = None,
    repetitions: Annotated[
        int, typer.Option(min=2, help="Launches of each number of workers.")
    ] = 5,
    device: DeviceName = "auto",
    seed: DrawnSeed = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write times and optimum.")
    ] = None,
) -> None:
    """Find how many loader workers pay off, on load alone and inside training.

    Leaves a picture in results/sweep.svg.
    """
    counts = parse_counts(num_workers)
    check_writable(PICTURE_FILE, json_file)
    recipe = Recipe(
        num_workers=max(1, counts[-1]),  # so that the options of workers are allowed
        persistent_workers=persistent_workers,
        pin_memory=pin_memory,
        non_blocking=non_blocking,
        prefetch_factor=prefetch_factor,
        parallel=parallel,
        precision=precision,
        micro_batch_size=micro_batch_size,
    )
    seed = draw_seed() if seed is None else seed
    # Of a hundred launches, most with more workers than torch thinks wise.
    session = open_session(device, _CELL_SEED, shows_output=False, round_s=ROUND_S)
    try:
        found = sweep_workers(
            session, workload, recipe, counts, num_repetitions=repetitions, seed=seed, say=_say
        )
    finally:
        session.close()
    training, loading = found.training, found.loading
    shown = training.intervals, loading.intervals, training.optimum, training.hurts_from
    picture = draw_sweep(f"{workload}: loader workers", *shown)
    write_atomically(PICTURE_FILE, svg_file(picture).encode())
    typer.echo(sweep_table(*shown))
    typer.echo(_conclusion(training))
    if (advice := advise(training.times_s)) is not None:
        typer.echo(f"advice: {advice}")
    typer.echo(f"{repetitions} repetitions, seed {seed}; picture in {PICTURE_FILE}")
    if json_file is not None:
        document = to_document(workload, recipe, found) | {"seed": seed}
        write_atomically(json_file, msgspec.json.format(msgspec.json.encode(document), indent=2))


def parse_counts(text: str) -> list[int]:
    """Return the numbers of workers that "0..10" or "0,1,2,4" names, ascending.

    Raises:
        SettingError: The text names none, or too many workers.

    >>> parse_counts("0..3"), parse_counts("4,0,2")
    ([0, 1, 2, 3], [0, 2, 4])
    """
    if match := re.fullmatch(r"(\d{1,4})\.\.(\d{1,4})", text):
        counts = list(range(int(match[1]), int(match[2]) + 1))
    elif re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        counts = sorted({int(number) for number in text.split(",")})
    else:
        counts = []
    if not counts or counts[-1] > _MOST_WORKERS:
        raise SettingError(
            f"--num-workers is {text!r}; use a range such as 0..10 or a list such as 0,1,2,4, "
            f"of at most {_MOST_WORKERS} workers"
        )
    return counts


def to_document(workload: str, recipe: Recipe, found: Sweep) -> dict[str, Any]:
    """Return a sweep as the verb's JSON: the times of training, and those of loading alone."""
    return {
        "schema": 1,
        "workload": workload,
        **_curve(found.training),
        "advice": advise(found.training.times_s),
        "loading": _curve(found.loading),
        "recipe": {name: value for name, value in recipe.as_dict().items() if name != _SWEPT},
    }


_SWEPT = "num_workers"


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "times": [
            {
                "num_workers": count,
                "iteration_s": interval.centre,
                "interval_s": [interval.low, interval.high]
                if math.isfinite(interval.high)
                else None,
                "repetitions_s": curve.times_s[count],
            }
            for count, interval in curve.intervals.items()
        ],
        "optimum": curve.optimum,
        "within_noise": find_good(curve.times_s),
        "hurts_from": curve.hurts_from,
    }


def _conclusion(training: Curve) -> str:
    """What the times of training say, in words."""
    good = find_good(training.times_s)
    others = ", ".join(map(str, good[1:]))
    text = f"optimum: {training.optimum}"
    text += f" (within noise of the best, as are {others})" if others else ""
    if training.hurts_from is not None:
        text += f"; from {training.hurts_from} on, more workers hurt"
    return text


def _say(text: str) -> None:
    typer.echo(text, err=True)
