"""The verb `sweep`: how many loader workers pay off."""

import dataclasses
import functools
import re
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from perfsuite.cli.options import DeviceName, DrawnSeed, WorkloadName, open_session, takes_recipe
from perfsuite.cli.output import JsonFile, say, write_json
from perfsuite.errors import SettingError
from perfsuite.experiments import sweep as experiment
from perfsuite.experiments.interleave import ROUND_S, Bench
from perfsuite.records.recipe import Recipe
from perfsuite.report.formats.html import svg_file
from perfsuite.report.terminal.sweep import draw_sweep, sweep_table
from perfsuite.system.files import check_writable, write_atomically

PICTURE_FILE = Path("results") / "sweep.svg"
_SWEPT = "num_workers"
# More loader processes than this for one rank is a mistyped number.
_MOST_WORKERS = 256


@functools.partial(takes_recipe, fixed={_SWEPT: 1})
def sweep(
    workload: WorkloadName,
    *,
    recipe: Recipe,
    num_workers: Annotated[
        str, typer.Option(metavar="A..B", help="Numbers of workers: 0..10, or 0,1,2,4.")
    ] = "0..10",
    repetitions: Annotated[int, typer.Option(min=2, help="Launches per number of workers.")] = 5,
    device: DeviceName = "auto",
    seed: DrawnSeed,
    json_file: JsonFile = None,
) -> None:
    """Find how many loader workers pay off, on load alone and inside training.

    Leaves a picture in results/sweep.svg.
    """
    counts = parse_counts(num_workers)
    check_writable(PICTURE_FILE)
    recipe = dataclasses.replace(recipe, num_workers=max(1, counts[-1]))
    # Of a hundred launches, most have more workers than torch thinks wise.
    with closing(open_session(device, shows_output=False, round_s=ROUND_S)) as session:
        bench = Bench(session=session, seed=seed, say=say, num_repetitions=repetitions)
        training, loading = experiment.sweep_workers(bench, workload, recipe, counts)
    optimum, hurts_from = experiment.find_optimum(training), experiment.find_hurts_from(training)
    shown = experiment.intervals_of(training), experiment.intervals_of(loading), optimum, hurts_from
    advice = experiment.advise(training)
    picture = draw_sweep(f"{workload}: loader workers", *shown)
    write_atomically(PICTURE_FILE, svg_file(picture).encode())
    typer.echo(sweep_table(*shown))
    others = ", ".join(map(str, experiment.find_within_noise(training)[1:]))
    within = f" (within noise of the best, like {others})" if others else ""
    hurts = "" if hurts_from is None else f"; from {hurts_from} on, more workers hurt"
    typer.echo(f"optimum: {optimum}{within}{hurts}")
    if advice is not None:
        typer.echo(f"advice: {advice}")
    typer.echo(f"{repetitions} repetitions, seed {seed}; picture in {PICTURE_FILE}")
    write_json(
        json_file,
        workload=workload,
        **_figures(training),
        advice=advice,
        loading=_figures(loading),
        recipe={name: value for name, value in recipe.as_dict().items() if name != _SWEPT},
        seed=seed,
    )


def parse_counts(text: str) -> list[int]:
    """Return the numbers of workers that "0..10" or "0,1,2,4" names, ascending."""
    if match := re.fullmatch(r"(\d{1,4})\.\.(\d{1,4})", text):
        counts = list(range(int(match[1]), int(match[2]) + 1))
    elif re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        counts = sorted({int(number) for number in text.split(",")})
    else:
        counts = []
    if not counts or counts[-1] > _MOST_WORKERS:
        found = f"--num-workers is {text!r}; use a range such as 0..10 or a list such as 0,1,2,4"
        raise SettingError(f"{found}, of at most {_MOST_WORKERS} workers")
    return counts


def _figures(times_s: experiment.Times) -> dict[str, Any]:
    return {
        "times": [
            {
                "num_workers": count,
                "iteration_s": interval.centre,
                "interval_s": interval.bounds,
                "repetitions_s": times_s[count],
            }
            for count, interval in experiment.intervals_of(times_s).items()
        ],
        "optimum": experiment.find_optimum(times_s),
        "within_noise": experiment.find_within_noise(times_s),
        "hurts_from": experiment.find_hurts_from(times_s),
    }
