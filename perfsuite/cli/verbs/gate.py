"""The verbs `gate` and `explain`: whether benchmarks became slower, and why."""

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
import typer.core

from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, pick, require_apart, say, write_json
from perfsuite.errors import SettingError
from perfsuite.gate.arms.build import find_interpreter
from perfsuite.gate.arms.command import Command
from perfsuite.gate.git.find_base import target_branch
from perfsuite.gate.judge.counts import differing_environments
from perfsuite.gate.judge.explain import explain_stored
from perfsuite.gate.judge.trial import LAUNCH_TIMEOUT_S, Budget
from perfsuite.gate.request import BOUNDS, PAIRS_FILE, GateRequest
from perfsuite.gate.run_gate import run_gate
from perfsuite.records.run_file import StoredRun, Unusable, read_run
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.model import report_on_verdicts
from perfsuite.report.summary import explanation_text
from perfsuite.report.terminal.gate import annotation_lines, verdict_lines
from perfsuite.stats.sequential import DEFAULT_MAX_PAIRS
from perfsuite.system.files import check_writable, write_atomically
from perfsuite.system.untrusted import printable
from perfsuite.system.urls import locate
from perfsuite.units import counted, format_change, option_bounds

_OF_COMMAND = typer.Option(rich_help_panel="Of a COMMAND after --")
NumberOfCommand = Annotated[int | None, _OF_COMMAND]
TextOfCommand = Annotated[str | None, _OF_COMMAND]
# Options of a command by the name of the argument of `command_benchmark`.
_COMMAND_OPTIONS = (
    *("steps", "warmup", "name", "metrics", "optimizer"),
    *("samples_per_step", "tokens_per_step"),
)


class CommandAfterDashes(typer.core.TyperCommand):
    """A verb that is given what follows the first `--` as its context's object."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before."""
        if "--" in args:
            at = args.index("--")
            ctx.obj, args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


@options.explained(
    base="Revision to compare with; the merge base unless given.",
    base_dir="Folder to compare with, instead of a revision.",
    base_python="Interpreter of the base; this one unless given.",
    base_build="Builds the base in its tree, or into the folder PERFSUITE_SITE.",
    base_env="Variable of the base alone.",
    timeout="A launch is stuck after so long without output or work.",
    identical="Let cells that no change touches pass, or judge them too.",
    numerics_change="Tell, or fail, a cell whose losses changed.",
    policy="advisory: exit codes 10 to 13 become 0.",
    markdown="Write a summary for a pull request.",
    steps="Steps to time; 40 unless given.",
    warmup="Steps before them; 10 unless given.",
    name="The cell's name; by default that of the command's first file.",
    metrics="Where it logs step times, such as jsonl:FILE:KEY.",
    optimizer="Class of the optimizer whose steps count; by default the first that steps.",
    samples_per_step="Of all ranks together.",
    tokens_per_step="Of all ranks together.",
)
def gate(
    context: typer.Context,
    paths: options.Paths = None,
    base: str | None = None,
    base_dir: Path | None = None,
    base_python: str | None = None,
    base_build: str | None = None,
    base_env: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    select: options.Selection = None,
    tolerance: options.Tolerance = None,
    limit: options.Limit = "5%",
    max_pairs: options.MaxPairs = DEFAULT_MAX_PAIRS,
    max_minutes: options.MaxMinutes = 30.0,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS")] = LAUNCH_TIMEOUT_S,
    identical: Literal["pass", "judge"] = "pass",
    numerics_change: Literal["tell", "fail"] = "tell",
    policy: Literal["enforce", "advisory"] = "enforce",
    steps: NumberOfCommand = None,
    warmup: NumberOfCommand = None,
    name: TextOfCommand = None,
    metrics: TextOfCommand = None,
    optimizer: TextOfCommand = None,
    samples_per_step: NumberOfCommand = None,
    tokens_per_step: NumberOfCommand = None,
    *,
    seed: options.DrawnSeed,
    json_file: JsonFile = None,
    markdown: Path | None = None,
) -> None:
    """Judge whether the benchmarks of any pytest-benchmark suite became slower than their base.

    Or one training command, as it is: `perfsuite gate -- torchrun --nproc-per-node=2 train.py`.

    Exit code: 0 none did, 10 a regression, 11 inconclusive, 12 no base or an unfit machine,
    13 nothing was compared, 1 a test failed.
    """
    sources = {name: context.get_parameter_source(name) for name in BOUNDS}
    typed = frozenset(name for name, it in sources.items() if it and it.name == "COMMANDLINE")
    request = dataclasses.replace(_request(context.params, context.obj), typed=typed)
    check_writable(markdown)
    result = run_gate(request, say=say, machine=options.wait_for_machine())
    annotations = annotation_lines(result.cells, result.root, os.environ)
    for text in (*verdict_lines(result.cells, result.refusal, result.differs), *annotations):
        typer.echo(text)
    if (judged := result.judgement) is not None:
        pairs = counted(judged.num_pairs, "pair")
        typer.echo(f"{pairs} in {judged.wall_s:.0f} s, seed {result.seed}")
    ended = result.leniency.ends(result.code)
    write_json(
        json_file,
        **pick(result, "cells seed arms refusal", arms="differs"),
        pairs=0 if judged is None else judged.num_pairs,
        wall_s=None if judged is None else judged.wall_s,
        exit_code=ended,
    )
    if markdown is not None:
        told = report_on_verdicts(result.cells, refusal=result.refusal, differs=result.differs)
        write_atomically(markdown, to_markdown(told).encode())
    if ended != result.code:
        typer.echo(f"advisory: would have ended in {result.code:d}")
    raise typer.Exit(ended)


def _request(given: Mapping[str, Any], words: list[str] | None) -> GateRequest:
    if given["base"] is not None and given["base_dir"] is not None:
        raise SettingError("--base and --base-dir name two bases; give one of them")
    variables = given["base_env"] or ()
    if wrong := [pair for pair in variables if pair.find("=") < 1]:
        raise SettingError(f"--base-env is {wrong[0]!r}; use KEY=VALUE")
    tolerance, limit = option_bounds(given["tolerance"], given["limit"])
    outputs, minutes = (given["json_file"], given["markdown"]), given["max_minutes"]
    stored = Path(options.STORAGE)
    return GateRequest(
        command=_command(given, words),
        base=given["base"],
        target=target_branch(os.environ),
        base_dir=None if given["base_dir"] is None else Path(given["base_dir"]),
        base_python=_interpreter(given["base_python"]),
        base_build=given["base_build"],
        base_environment=dict(pair.split("=", 1) for pair in variables),
        judges_identical=given["identical"] == "judge",
        tolerance=None if given["tolerance"] is None else tolerance,
        limit=limit,
        refuses_numerics_change=given["numerics_change"] == "fail",
        is_advisory=given["policy"] == "advisory",
        budget=Budget(max_pairs=given["max_pairs"], max_s=60 * minutes, timeout_s=given["timeout"]),
        seed=given["seed"],
        fingerprint=options.environment_here().fingerprint,
        stored=stored if words is None and stored.is_dir() else None,
        outputs=tuple(Path(path) for path in outputs if path is not None),
        pairs_file=None if words is not None else Path.cwd() / "results" / PAIRS_FILE,
    )


def _command(given: Mapping[str, Any], words: list[str] | None) -> Command:
    paths, select = given["paths"] or (), given["select"]
    of_command = {name: given[name] for name in _COMMAND_OPTIONS if given[name] is not None}
    if words is not None:
        if others := [*paths, *([] if select is None else ["-k"])]:
            found = f"{others[0]} stands before -- and a command, which is the only cell"
            raise SettingError(f"{found}; leave it out")
        if not words:
            raise SettingError("no command stands after --; write one, such as torchrun train.py")
        return options.command_call(words, of_command)
    if of_command:
        option = f"--{next(iter(of_command)).replace('_', '-')}"
        raise SettingError(f"{option} is for a command; write the command at the end, after --")
    return options.pytest_command(paths, select)


def _interpreter(python: str | None) -> str | None:
    try:
        return None if python is None else find_interpreter(python)
    except ValueError as error:
        found = f"--base-python is {python!r}, which is not a program; name an interpreter"
        raise SettingError(found) from error


def explain(
    base: Annotated[str, typer.Argument(help="A stored run, such as baselines/.../0001_a.json.")],
    head: Annotated[str, typer.Argument(help="The run to explain, such as results/run.json.")],
    cell: Annotated[str | None, typer.Argument(help="One cell; all of both unless given.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Say why cells moved between two runs: the stage that moved most, the counts that changed."""
    require_apart([base, head], [json_file])
    before, after = _read(base, "BASE"), _read(head, "HEAD")
    common = [name for name in after.cells if name in before.cells]
    if cell is not None and cell not in common:
        first = f", {common[0]!r} for one" if common else ""
        raise SettingError(f"{cell!r} is not a cell of both runs; they share {len(common)}{first}")
    if not common:
        raise SettingError("the two runs share no cell; compare two runs of the same benchmarks")
    cells = []
    for name in common if cell is None else [cell]:
        old, new = before.cells[name], after.cells[name]
        explanation = explain_stored(old, new)
        cells.append({"id": name, **msgspec.to_builtins(explanation)})
        change = format_change(new.median_s / old.median_s)
        if math.isinf(new.median_s / old.median_s):  # of a time that no clock measures
            change = f"{old.median_s} s -> {new.median_s} s, too large for a ratio"
        text = f"{name}: {change}; {explanation_text(explanation)}"
        if differs := differing_environments(old, new):
            text += f"; the environments differ: {differs}"
        typer.echo(printable(text))
    if num_others := len(before.cells.keys() ^ after.cells.keys()):
        typer.echo(f"of one run alone, and not compared: {counted(num_others, 'cell')}")
    write_json(json_file, cells=cells)


def _read(text: str, name: str) -> StoredRun:
    run = read_run(locate(text, name))
    if isinstance(run, Unusable):
        raise SettingError(str(run))
    return run
