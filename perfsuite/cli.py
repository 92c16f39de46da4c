"""The command line: one console script, one verb a function.

Every verb has --help with an example and `--json FILE` where it has a result. Must not measure or
decide anything itself, and imports no torch.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfsuite.doctor import Status, examine
from perfsuite.errors import PerfsuiteError, WriteError
from perfsuite.files import write_atomically

app = typer.Typer(
    name="perfsuite",
    help="Measure PyTorch training, prove that it computes the same, gate merges on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
_EXIT_UNFIT = 1
_EXIT_USAGE = 2


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    try:
        app()
    except PerfsuiteError as error:
        sys.stderr.write(f"perfsuite: {error}\n")
        sys.exit(_EXIT_USAGE)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfsuite {version('perfsuite')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options before any verb."""


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example: perfsuite run benchmarks/ --perf-matrix=smoke",
)
def run(context: typer.Context) -> None:
    """Run the benchmarks: `pytest PATHS` with any pytest options; its exit code is pytest's."""
    # pytest replaces this process, so signals, terminal and exit code are its own.
    arguments = context.args if _names_a_path(context.args) else ["benchmarks", *context.args]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


def _names_a_path(arguments: list[str]) -> bool:
    """Whether pytest is told where to look; it would otherwise run all tests of the project."""
    paths = [argument.partition("::")[0] for argument in arguments]
    return any(path and Path(path).exists() for path in paths)


@app.command(epilog="Example: perfsuite doctor --json doctor.json")
def doctor(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the findings there.")
    ] = None,
) -> None:
    """Say whether this machine is fit for timing: each line ok, warn or fail, and what to do."""
    findings = examine()
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        style = _STYLES[finding.status]
        console.print(f"[{style}]{finding.status:4}[/] {finding.subject}: ", end="")
        console.print(finding.text, markup=False)
        if finding.advice:
            console.print(f"     -> {finding.advice}", markup=False)
    if json_file is not None:
        document = {"schema": 1, "findings": [finding.as_dict() for finding in findings]}
        try:
            write_atomically(json_file, json.dumps(document, indent=2).encode())
        except WriteError as error:
            sys.stderr.write(f"perfsuite: {error}\n")
            raise typer.Exit(12) from error
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(_EXIT_UNFIT)
