"""The verb `compare`: what it asks for, prints and writes. Must not know how anything is judged."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.cli.options import (
    DeviceName,
    DrawnSeed,
    MaxMinutes,
    MaxPairs,
    WorkloadName,
    open_session,
)
from perfsuite.errors import SettingError
from perfsuite.experiments.compare import Comparison, ComparisonRequest, compare, prove_cell
from perfsuite.experiments.interleave import Cell
from perfsuite.gate.judge.trial import Budget, draw_seed
from perfsuite.records.recipe_text import describe_recipe, parse_recipe
from perfsuite.report.terminal.compare import comparison_sentence, comparison_table
from perfsuite.system.files import check_writable, write_atomically
from perfsuite.units import option_bounds

# Of weights and data; --seed is of the order of launches.
_CELL_SEED = 0


def compare_recipes(
    workload: WorkloadName,
    a: Annotated[
        list[str] | None,
        typer.Option("--a", metavar="FIELD=VALUE", help="Of a's recipe; several may be given."),
    ] = None,
    b: Annotated[
        list[str] | None,
        typer.Option("--b", metavar="FIELD=VALUE", help="Of b's recipe; several may be given."),
    ] = None,
    tolerance: Annotated[str, typer.Option(help="A difference up to this is none.")] = "2%",
    limit: Annotated[str, typer.Option(help='"The same" means within this.')] = "5%",
    max_pairs: MaxPairs = 16,
    max_minutes: MaxMinutes = 30.0,
    device: DeviceName = "auto",
    seed: DrawnSeed = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write figures and raw pairs.")
    ] = None,
) -> None:
    """Say which of two recipes trains a workload faster: launches in pairs, round by round."""
    cells = {
        name: Cell(workload=workload, recipe=parse_recipe(f"--{name}", pairs or []))
        for name, pairs in (("a", a), ("b", b))
    }
    bounds = option_bounds(tolerance, limit)
    if cells["a"].recipe == cells["b"].recipe:
        raise SettingError(
            "a and b are the same recipe; say what differs, such as --b precision=amp-bf16"
        )
    check_writable(json_file)
    request = ComparisonRequest(
        **cells,
        tolerance=bounds[0],
        limit=bounds[1],
        budget=Budget(max_pairs=max_pairs, max_s=60 * max_minutes),
        seed=draw_seed() if seed is None else seed,
    )
    session = open_session(device, _CELL_SEED)
    try:
        numerics = {name: prove_cell(session, cell).numerics for name, cell in cells.items()}
        comparison = compare(session, request, say=_say)
    finally:
        session.close()
    records = {
        name: msgspec.structs.replace(record, numerics=numerics[name])
        for name, record in comparison.records.items()
    }
    names = {name: describe_recipe(cell.recipe) for name, cell in cells.items()}
    typer.echo(comparison_table(names, step_times_s(comparison), comparison.num_samples, records))
    sentence = comparison_sentence(comparison.word, comparison.ratio, comparison.interval)
    typer.echo(sentence)
    typer.echo(f"{len(comparison.raw)} pairs in {comparison.wall_s:.0f} s, seed {request.seed}")
    if json_file is not None:
        document = to_document(request, comparison, sentence) | {
            "numerics": {name: numerics[name] for name in cells}
        }
        write_atomically(json_file, msgspec.json.format(msgspec.json.encode(document), indent=2))


def step_times_s(comparison: Comparison) -> dict[str, float]:
    """Return the seconds of an iteration of both, the median over pairs."""
    return {
        name: statistics.median([pair[at] for pair in comparison.raw])
        * comparison.num_samples[name]
        for at, name in enumerate(("a", "b"))
    }


def to_document(
    request: ComparisonRequest, comparison: Comparison, sentence: str
) -> dict[str, Any]:
    """Return the comparison as the verb's JSON; `ratio` and `raw` are of seconds per sample."""
    records = comparison.records
    low, high = comparison.interval
    is_known = high != float("inf")
    return {
        "schema": 1,
        "workload": request.a.workload,
        "a": request.a.recipe.as_dict(),
        "b": request.b.recipe.as_dict(),
        "word": comparison.word,
        "sentence": sentence,
        "ratio": comparison.ratio,
        "interval": [low, high] if is_known else None,
        "pairs": len(comparison.raw),
        "raw": comparison.raw,
        "tolerance": request.tolerance,
        "limit": request.limit,
        "seed": request.seed,
        "wall_s": comparison.wall_s,
        "step_times_s": step_times_s(comparison),
        "samples": comparison.num_samples,
        "stages_s": {name: record.stages_s for name, record in records.items()},
        "memory": {name: record.memory for name, record in records.items()},
        "counts": {name: record.counts for name, record in records.items()},
    }


def _say(text: str) -> None:
    typer.echo(text, err=True)
