"""The verbs `gate` and `explain`: whether benchmarks became slower, and why."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
import typer.core

from perfsuite.cli import options
from perfsuite.cli.output import JsonFile, say, write_json
from perfsuite.errors import ExitCode, SettingError
from perfsuite.gate.arms.build import find_interpreter
from perfsuite.gate.arms.command import Command
from perfsuite.gate.git.find_base import target_branch
from perfsuite.gate.judge.explain import explain_stored
from perfsuite.gate.judge.kept_pairs import PAIRS_FILE
from perfsuite.gate.judge.trial import LAUNCH_TIMEOUT_S, Budget
from perfsuite.gate.request import GateRequest
from perfsuite.gate.run_gate import GateResult, run_gate
from perfsuite.records.run_file import StoredRun, Unusable, read_run
from perfsuite.records.verdict import exit_code
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.model import report_on_verdicts
from perfsuite.report.summary import explanation_text
from perfsuite.report.terminal.gate import verdict_lines
from perfsuite.stats.sequential import DEFAULT_MAX_PAIRS
from perfsuite.system.files import check_writable, write_atomically
from perfsuite.system.untrusted import printable
from perfsuite.system.urls import locate
from perfsuite.units import counted, format_change, option_bounds

Base = Annotated[
    str | None, typer.Option(help="Revision to compare with; the merge base unless given.")
]
BaseDir = Annotated[
    Path | None, typer.Option(help="Folder to compare with, instead of a revision.")
]
BasePython = Annotated[
    str | None, typer.Option(help="Interpreter of the base; this one unless given.")
]
BaseBuild = Annotated[
    str | None,
    typer.Option(
        metavar="CMD", help="Builds the base in its tree, or into the folder PERFSUITE_SITE."
    ),
]
BaseEnv = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Variable of the base alone.")
]
Timeout = Annotated[
    float,
    typer.Option(
        min=1, metavar="SECONDS", help="A launch that prints and does nothing for so long is stuck."
    ),
]
Identical = Annotated[
    Literal["pass", "judge"],
    typer.Option(help="Let cells that no change touches pass, or judge them too."),
]
NumericsChange = Annotated[
    Literal["tell", "fail"], typer.Option(help="Tell, or fail, a cell whose first losses changed.")
]
Markdown = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a summary for a pull request.")
]


def _of_command(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel="Of a COMMAND after --")


Steps = Annotated[int | None, _of_command("N", "Steps to time; 40 unless given.")]
Warmup = Annotated[int | None, _of_command("N", "Steps before them; 10 unless given.")]
Name = Annotated[str | None, _of_command("NAME", "Of the cell; that of the command's first file.")]
Metrics = Annotated[
    str | None, _of_command("SPEC", "Where it logs step times, such as jsonl:FILE:KEY.")
]
Optimizer = Annotated[str | None, _of_command("CLASS", "Whose steps count; the first that steps.")]
PerStep = Annotated[int | None, _of_command("N", "Of all ranks together.")]


class CommandAfterDashes(typer.core.TyperCommand):
    """A verb that is given what follows the first `--` as its context's object."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before."""
        if "--" in args:
            at = args.index("--")
            ctx.obj, args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


def gate(
    context: typer.Context,
    paths: options.Paths = None,
    base: Base = None,
    base_dir: BaseDir = None,
    base_python: BasePython = None,
    base_build: BaseBuild = None,
    base_env: BaseEnv = None,
    select: options.Selection = None,
    tolerance: options.Tolerance = "2%",
    limit: options.Limit = "5%",
    max_pairs: options.MaxPairs = DEFAULT_MAX_PAIRS,
    max_minutes: options.MaxMinutes = 30.0,
    timeout: Timeout = LAUNCH_TIMEOUT_S,
    identical: Identical = "pass",
    numerics_change: NumericsChange = "tell",
    steps: Steps = None,
    warmup: Warmup = None,
    name: Name = None,
    metrics: Metrics = None,
    optimizer: Optimizer = None,
    samples_per_step: PerStep = None,
    tokens_per_step: PerStep = None,
    *,
    seed: options.DrawnSeed,
    json_file: JsonFile = None,
    markdown: Markdown = None,
) -> None:
    """Judge whether the benchmarks of any pytest-benchmark suite became slower than their base.

    Or one training command, as it is: `perfsuite gate -- torchrun --nproc-per-node=2 train.py`.

    Exit code: 0 none did, 10 a regression, 11 inconclusive, 12 no base or an unfit machine,
    13 nothing was compared, 1 a test failed.
    """
    bounds = option_bounds(tolerance, limit)
    given = {
        "steps": steps,
        "warmup": warmup,
        "name": name,
        "metrics": metrics,
        "optimizer": optimizer,
        "samples_per_step": samples_per_step,
        "tokens_per_step": tokens_per_step,
    }
    words: list[str] | None = context.obj
    request = GateRequest(
        command=_command(words, given, paths or (), select),
        **_base_fields(base, base_dir, base_python, base_build, base_env or []),
        judges_identical=identical == "judge",
        tolerance=bounds[0],
        limit=bounds[1],
        refuses_numerics_change=numerics_change == "fail",
        budget=Budget(max_pairs=max_pairs, max_s=60 * max_minutes, timeout_s=timeout),
        seed=seed,
        fingerprint=options.fingerprint_here(),
        stored=stored if words is None and (stored := Path(options.STORAGE)).is_dir() else None,
        outputs=tuple(path for path in (json_file, markdown) if path is not None),
        pairs_file=None if words is not None else Path.cwd() / "results" / PAIRS_FILE,
    )
    check_writable(*request.outputs)
    result = run_gate(request, say=say, machine=options.wait_for_machine())
    _show(result)
    write_json(json_file, **_document(result))
    if markdown is not None:
        write_atomically(markdown, _to_markdown(result, request).encode())
    raise typer.Exit(end_code(result))


def _command(
    words: Sequence[str] | None, given: Mapping[str, Any], paths: Sequence[str], select: str | None
) -> Command:
    """Return the call of pytest: of the user's benchmarks, or of a command as the only cell."""
    given = {name: value for name, value in given.items() if value is not None}
    if words is not None:
        others = [*paths, *([] if select is None else ["-k"])]
        if others:
            raise SettingError(
                f"{others[0]} stands before -- and a command, which is the only cell; leave it out"
            )
        return options.command_call(words, given)
    if given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise SettingError(f"{option} is for a command; write the command at the end, after --")
    return options.pytest_command(paths, select)


def _base_fields(
    base: str | None,
    base_dir: Path | None,
    python: str | None,
    build: str | None,
    variables: list[str],
) -> dict[str, Any]:
    if base is not None and base_dir is not None:
        raise SettingError("--base and --base-dir name two bases; give one of them")
    wrong = next((pair for pair in variables if pair.find("=") < 1), None)
    if wrong is not None:
        raise SettingError(f"--base-env is {wrong!r}; use KEY=VALUE")
    return {
        "base": base,
        "target": target_branch(os.environ),
        "base_dir": base_dir,
        "base_python": None if python is None else _interpreter(python),
        "base_build": build,
        "base_environment": dict(pair.split("=", 1) for pair in variables),
    }


def _interpreter(python: str) -> str:
    try:
        return find_interpreter(python)
    except ValueError as error:
        raise SettingError(
            f"--base-python is {python!r}, which is not a program; name an interpreter"
        ) from error


def _show(result: GateResult) -> None:
    for text in verdict_lines(result.cells, result.refusal, result.differs):
        typer.echo(text)
    if (judged := result.judgement) is not None:
        pairs = counted(judged.num_pairs, "pair")
        typer.echo(f"{pairs} in {judged.wall_s:.0f} s, seed {result.seed}")


def _to_markdown(result: GateResult, request: GateRequest) -> str:
    report = report_on_verdicts(
        result.cells,
        refusal=result.refusal,
        differs=result.differs,
        tolerance=request.tolerance,
        limit=request.limit,
    )
    return to_markdown(report)


def end_code(result: GateResult) -> ExitCode:
    """Return what a gate session ends in."""
    if result.refusal is not None:
        return ExitCode.REFUSED
    return exit_code(cell.word for cell in result.cells)


def _document(result: GateResult) -> dict[str, Any]:
    """The verb's JSON, with all that it takes to compute a verdict again."""
    return {
        "cells": result.cells,
        "seed": result.seed,
        "arms": result.differs,
        "refusal": result.refusal,
        "pairs": 0 if result.judgement is None else result.judgement.num_pairs,
        "wall_s": None if result.judgement is None else result.judgement.wall_s,
        "exit_code": end_code(result),
    }


def explain(
    base: Annotated[str, typer.Argument(help="A stored run, such as baselines/.../0001_a.json.")],
    head: Annotated[str, typer.Argument(help="The run to explain, such as results/run.json.")],
    cell: Annotated[
        str | None, typer.Argument(help="One cell; all that both have unless given.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Say why cells moved between two runs: the stage that moved most, the counts that changed."""
    check_writable(json_file)
    before, after = _read(base, "BASE"), _read(head, "HEAD")
    common = [name for name in after.cells if name in before.cells]
    if cell is not None and cell not in common:
        raise SettingError(
            f"{cell!r} is not a cell of both runs; they share {len(common)}"
            + (f", {common[0]!r} for one" if common else "")
        )
    names = common if cell is None else [cell]
    cells = []
    for name in names:
        old, new = before.cells[name], after.cells[name]
        explanation = explain_stored(old, new)
        cells.append({"id": name, **msgspec.to_builtins(explanation)})
        change = _change(old.median_s, new.median_s)
        typer.echo(printable(f"{name}: {change}; {explanation_text(explanation)}"))
    if not names:
        typer.echo("the two runs share no cell")
    write_json(json_file, cells=cells)


def _change(base_s: float, head_s: float) -> str:
    ratio = head_s / base_s
    if math.isinf(ratio):  # of a time that no clock measures
        return f"{base_s} s -> {head_s} s, more than a ratio can say"
    return format_change(ratio)


def _read(text: str, name: str) -> StoredRun:
    run = read_run(locate(text, name))
    if isinstance(run, Unusable):
        raise SettingError(str(run))
    return run
