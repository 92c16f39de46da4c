"""The command line: one console script, one verb a function.

Every verb has --help with an example and `--json FILE` where it has a result. Must not measure or
decide anything itself, and imports no torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfsuite.baseline_verbs import app as baseline
from perfsuite.bisect_verb import bisect_commits
from perfsuite.calibrate_verb import calibrate_machine
from perfsuite.cells import Recipe
from perfsuite.claims_verb import claims
from perfsuite.compare_verb import compare_recipes
from perfsuite.doctor import Status, examine
from perfsuite.errors import PerfsuiteError, SettingError, StorageError, WriteError
from perfsuite.every_recipe import every_recipe
from perfsuite.explain_verb import explain
from perfsuite.files import check_writable, write_atomically
from perfsuite.gate_verb import gate
from perfsuite.history_verb import history
from perfsuite.init_verb import init
from perfsuite.interruptions import ends_on_signals, shell_exit_code
from perfsuite.profile_verb import profile
from perfsuite.recipe_options import DeviceName, Seed, WorkloadName, open_session, takes_recipe
from perfsuite.records import EquivalenceReport
from perfsuite.registry import find_workload
from perfsuite.report.equivalence import equivalence_table, explanations
from perfsuite.report_verb import report
from perfsuite.session import MAX_VERIFIED_STEPS, Session
from perfsuite.sweep_verb import sweep
from perfsuite.untrusted import printable_lines
from perfsuite.verifying import EXIT_CODES, exit_code, to_document, verify_every, verify_one

app = typer.Typer(
    name="perfsuite",
    help="Measure PyTorch training, prove that it computes the same, gate merges on it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(baseline)

_STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
_EXIT_UNFIT = 1
_EXIT_USAGE = 2
_EXIT_REFUSED = 12
# What typer makes of Ctrl-C, without a word.
_EXIT_INTERRUPTED = shell_exit_code(signal.SIGINT)
_WITH_REPORT = ("-p", "perfsuite.run_report")


def main() -> None:
    """Run the command line; a mistake is one line and 2, what cannot be written or reached 12.

    A signal ends a verb as a shell expects, in one line, and whatever it has begun is cleared up.
    """
    try:
        with ends_on_signals():
            app()
    except SystemExit as ended:
        if ended.code == _EXIT_INTERRUPTED:
            sys.stderr.write("perfsuite: ended by SIGINT\n")
        raise
    except (StorageError, WriteError) as error:
        sys.stderr.write(f"perfsuite: {printable_lines(str(error))}\n")
        sys.exit(_EXIT_REFUSED)
    except PerfsuiteError as error:
        sys.stderr.write(f"perfsuite: {printable_lines(str(error))}\n")
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
    """Run the benchmarks and report: `pytest PATHS` with any pytest options and its exit code."""
    # pytest replaces this process, so signals, terminal and exit code are its own.
    arguments = context.args if _names_a_path(context.args) else ["benchmarks", *context.args]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *_WITH_REPORT, *arguments])


def _names_a_path(arguments: list[str]) -> bool:
    """Whether pytest is told where to look; it would otherwise run all tests of the project."""
    paths = [argument.partition("::")[0] for argument in arguments]
    return any(path and Path(path).exists() for path in paths)


@app.command(
    epilog="Example: perfsuite verify my_package.module:workload --parallel ddp:2 "
    "--precision amp-bf16"
)
@takes_recipe
def verify(
    workload: WorkloadName,
    *,
    recipe: Recipe,
    all_recipes: Annotated[
        bool, typer.Option("--all", help="Try every recipe that this machine can exercise.")
    ] = False,
    num_steps: Annotated[
        int,
        typer.Option("--steps", min=1, max=MAX_VERIFIED_STEPS, help="Optimizer steps to compare."),
    ] = 3,
    device: DeviceName = "auto",
    seed: Seed = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the rows there.")
    ] = None,
) -> None:
    """Prove that a workload computes the same as one process: gradients, losses, weights.

    Exit code: 0 equivalent, 20 mismatch, 21 a check without power, 22 not exercised.
    """
    if all_recipes and recipe != Recipe():
        raise SettingError("--all tries every recipe; leave the options of one recipe out")
    check_writable(json_file)
    session = open_session(device, seed)
    if all_recipes:
        reports = _verify_every(session, workload, num_steps)
    else:
        reports = [verify_one(session, workload, recipe, num_steps)]
    _show_reports(reports, every_row=not all_recipes)
    if json_file is not None:
        write_atomically(json_file, to_document(reports))
    raise typer.Exit(exit_code(reports, of_table=all_recipes))


def _verify_every(session: Session, workload: str, num_steps: int) -> list[EquivalenceReport]:
    find_workload(workload)
    recipes = list(every_recipe())
    console = Console(stderr=True, highlight=False)

    def show(num_done: int, report: EquivalenceReport) -> None:
        status.update(f"{num_done} of {len(recipes)} recipes: {report.recipe['parallel']}")

    with console.status(f"0 of {len(recipes)} recipes") as status:
        return verify_every(session, workload, recipes, num_steps, show)


def _show_reports(reports: list[EquivalenceReport], *, every_row: bool) -> None:
    typer.echo(equivalence_table(reports))
    for text in explanations(reports, every_row=every_row):
        typer.echo(text)
    if not every_row:
        counted = Counter(report.status for report in reports)
        typer.echo(", ".join(f"{counted[name]} {name}" for name in EXIT_CODES if counted[name]))


app.command(epilog="Example: perfsuite gate benchmarks/ --base origin/main --json gate.json")(gate)


app.command(epilog="Example: perfsuite profile lenet-digits --num-workers 2 --epochs 3")(profile)
app.command(epilog="Example: perfsuite report results/run.json --html results/report")(report)
app.command(epilog="Example: perfsuite init")(init)
app.command(
    epilog="Example: perfsuite history 'benchmarks/test_step.py::test_step\\[ddp:2]' --json h.json"
)(history)
app.command(epilog="Example: perfsuite explain baselines/0001_a.json results/run.json")(explain)
app.command(
    "compare",
    epilog="Example: perfsuite compare lenet-digits --a precision=fp32 --b precision=amp-bf16",
)(compare_recipes)
app.command(epilog="Example: perfsuite sweep lenet-digits --num-workers 0..10")(sweep)
app.command(epilog="Example: perfsuite claims --only C5 --json claims.json")(claims)
app.command(
    "bisect",
    epilog="Example: perfsuite bisect --good v1.2 'benchmarks/test_step.py::test_step\\[ddp:2]'",
)(bisect_commits)
app.command("calibrate", epilog="Example: perfsuite calibrate benchmarks/ --sessions 20")(
    calibrate_machine
)


@app.command(epilog="Example: perfsuite doctor --json doctor.json")
def doctor(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the findings there.")
    ] = None,
) -> None:
    """Say whether this machine is fit for timing: each line ok, warn or fail, and what to do."""
    check_writable(json_file)
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
        write_atomically(json_file, json.dumps(document, indent=2).encode())
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(_EXIT_UNFIT)
