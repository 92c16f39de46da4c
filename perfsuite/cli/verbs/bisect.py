"""The verb `bisect`: which commit made a cell slower."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, pick, say, write_json
from perfsuite.errors import ExitCode
from perfsuite.gate.arms.command import Command
from perfsuite.gate.bisect import BisectResult, BisectStep, bisect
from perfsuite.gate.judge.trial import Budget
from perfsuite.gate.noise import CALIBRATION_FILE, read_priors
from perfsuite.gate.request import GateRequest
from perfsuite.records.verdict import exit_code
from perfsuite.report.summary import reason_text
from perfsuite.stats.sequential import DEFAULT_MAX_PAIRS
from perfsuite.system.untrusted import printable_lines
from perfsuite.units import counted, format_change, format_ratio, option_bounds, short_commit


@options.explained(
    good="A revision at which it was not slower yet.",
    bad="One at which it is.",
    tolerance="Slowdown that is accepted; a quarter of the bad commit's unless given, 2% at least.",
    limit="Slowdown that must not pass; three quarters of it, 5% at least; 5% beside --tolerance.",
    max_pairs="Launches of each side in a step, at most.",
    max_minutes="Start no pair of a step that would end after this.",
)
def bisect_commits(
    cell: Annotated[str, typer.Argument(metavar="NODEID", help="One test, as pytest shows it.")],
    good: Annotated[str, typer.Option(metavar="REV")],
    bad: Annotated[str, typer.Option(metavar="REV")] = "HEAD",
    tolerance: str | None = None,
    limit: str | None = None,
    max_pairs: options.MaxPairs = DEFAULT_MAX_PAIRS,
    max_minutes: options.MaxMinutes = 30.0,
    *,
    seed: options.DrawnSeed,
    json_file: JsonFile = None,
) -> None:
    """Find the commit that made a benchmark slower: bisection with the gate's verdict of each.

    The benchmark is the working tree's at every commit, so it may be younger than the slowdown.
    A commit is bad, too, where it is as fast and a count or its memory grew, as in the gate.
    Exit code: 0 found, 2 usage or nothing to find, 11 inconclusive, 12 an unfit machine.
    """
    bounds = None
    if tolerance is not None or limit is not None:
        # The gate's limit, where a tolerance alone is given.
        bounds = option_bounds(tolerance, limit or "5%")
    request = GateRequest(
        command=Command(folder=Path.cwd(), arguments=(cell,)),
        budget=Budget(max_pairs=max_pairs, max_s=60 * max_minutes),
        seed=seed,
        priors=read_priors(Path.cwd() / CALIBRATION_FILE, options.environment_here().fingerprint),
    )
    machine = options.wait_for_machine()
    result = bisect(request, good=good, bad=bad, bounds=bounds, say=say, machine=machine)
    for line in _describe(result):
        typer.echo(printable_lines(line))
    typer.echo(f"seed {request.seed}")
    ended = _end_code(result)
    write_json(
        json_file,
        **pick(result, "cell refusal"),
        first_bad=None if result.first_bad is None else _step(result.first_bad),
        possible=[{"commit": commit, "subject": subject} for commit, subject in result.possible],
        ends=[_step(step) for step in result.ends],
        steps=[_step(step) for step in result.steps],
        tolerance=result.bounds[0],
        limit=result.bounds[1],
        seed=request.seed,
        exit_code=ended,
    )
    raise typer.Exit(ended)


def _describe(result: BisectResult) -> Iterator[str]:
    first = result.first_bad
    if result.refusal is not None:
        yield result.refusal
    elif first is None:
        yield f"the first bad commit is one of {len(result.possible)} that could not all be judged:"
        yield from (f"  {short_commit(commit)} {subject}" for commit, subject in result.possible)
    else:
        verdict, texts = first.verdict, [reason_text(first.verdict)]
        if verdict.by == "pairs" and verdict.ratio is not None and verdict.interval is not None:
            ends = " to ".join(map(format_change, verdict.interval))
            slower = f"slower by {format_ratio(verdict.ratio - 1)} than the good one"
            texts.insert(0, f"{slower} ({ends}, {counted(verdict.num_pairs, 'pair')})")
        subject = f"{short_commit(first.commit)} is the first bad commit, {first.subject!r}"
        yield f"{subject}: {'; '.join(filter(None, texts))}"


def _end_code(result: BisectResult) -> ExitCode:
    if result.first_bad is not None:
        return ExitCode.OK
    if result.refusal is None:
        return ExitCode.INCONCLUSIVE
    last = result.ends[-1]
    if last.mark == "skip":
        return exit_code([last.verdict.word])
    # The bad end is good, or the good one is slower than itself.
    return ExitCode.USAGE if last.mark == "good" else ExitCode.REFUSED


def _step(step: BisectStep) -> dict[str, Any]:
    verdict: dict[str, Any] = msgspec.to_builtins(step.verdict.as_record())
    return verdict | pick(step.verdict, "reason explanation") | pick(step, "commit subject mark")
