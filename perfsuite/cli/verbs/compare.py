"""The verb `compare`: which of two recipes trains a workload faster."""

import math
from contextlib import closing
from typing import Annotated

import msgspec
import typer

from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, pick, say, write_json
from perfsuite.errors import SettingError
from perfsuite.experiments.compare import ComparisonRequest, check_numerics, compare
from perfsuite.experiments.interleave import Bench, Cell
from perfsuite.gate.judge.trial import Budget
from perfsuite.records.recipe import describe_recipe, parse_recipe
from perfsuite.report.terminal.compare import comparison_sentence, comparison_table
from perfsuite.stats.sequential import DEFAULT_MAX_PAIRS
from perfsuite.units import counted, option_bounds


@options.explained(
    a="Of a's recipe; several may be given.",
    b="Of b's recipe; several may be given.",
    tolerance="A difference up to this counts as none; 0.4 of the limit unless given.",
    limit='"The same" means within this.',
)
def compare_recipes(
    workload: options.WorkloadName,
    a: Annotated[list[str] | None, typer.Option("--a", metavar="FIELD=VALUE")] = None,
    b: Annotated[list[str] | None, typer.Option("--b", metavar="FIELD=VALUE")] = None,
    tolerance: str | None = None,
    limit: str = "5%",
    max_pairs: options.MaxPairs = DEFAULT_MAX_PAIRS,
    max_minutes: options.MaxMinutes = 30.0,
    device: options.DeviceName = "auto",
    *,
    seed: options.DrawnSeed,
    json_file: JsonFile = None,
) -> None:
    """Say which of two recipes trains a workload faster: launches in pairs, round by round."""
    cells = {
        name: Cell(workload=workload, recipe=parse_recipe(f"--{name}", pairs or []))
        for name, pairs in (("a", a), ("b", b))
    }
    bounds = option_bounds(tolerance, limit)
    if cells["a"].recipe == cells["b"].recipe:
        raise SettingError("a and b are the same recipe; change one: --b precision=amp-bf16")
    budget = Budget(max_pairs=max_pairs, max_s=60 * max_minutes)
    request = ComparisonRequest(**cells, tolerance=bounds[0], limit=bounds[1], budget=budget)
    with closing(options.open_session(device)) as session:
        numerics = {name: check_numerics(session, cell).numerics for name, cell in cells.items()}
        comparison = compare(Bench(session=session, seed=seed, say=say), request)
    records = {
        name: msgspec.structs.replace(record, numerics=numerics[name])
        for name, record in comparison.records.items()
    }
    names = {name: describe_recipe(cell.recipe) for name, cell in cells.items()}
    typer.echo(comparison_table(names, comparison.step_times_s, comparison.num_samples, records))
    sentence = comparison_sentence(comparison.word, comparison.ratio, comparison.interval)
    typer.echo(sentence)
    typer.echo(f"{counted(len(comparison.raw), 'pair')} in {comparison.wall_s:.0f} s, seed {seed}")
    write_json(
        json_file,
        workload=workload,
        a=request.a.recipe.as_dict(),
        b=request.b.recipe.as_dict(),
        # The ratio and the raw pairs are of seconds per sample.
        **pick(comparison, "word ratio raw wall_s step_times_s samples", samples="num_samples"),
        interval=comparison.interval if math.isfinite(comparison.interval[1]) else None,
        pairs=len(comparison.raw),
        **pick(request, "tolerance limit"),
        stages_s={name: record.stages_s for name, record in records.items()},
        memory={name: record.memory for name, record in records.items()},
        counts={name: record.counts for name, record in records.items()},
        sentence=sentence,
        numerics=numerics,
        seed=seed,
    )
