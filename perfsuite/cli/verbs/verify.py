"""The verb `verify`: whether a workload computes the same as one process."""

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console

from perfsuite.cli.options import DeviceName, Seed, WorkloadName, open_session, takes_recipe
from perfsuite.cli.output import JsonFile, say, write_json
from perfsuite.errors import ExitCode, SettingError
from perfsuite.experiments import verify as experiment
from perfsuite.experiments.rank_session import MAX_VERIFIED_STEPS, Session
from perfsuite.records.equivalence import EquivalenceReport
from perfsuite.records.recipe import Recipe
from perfsuite.records.workload import find_workload
from perfsuite.report.terminal.equivalence import equivalence_table, explanations


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
    json_file: JsonFile = None,
) -> None:
    """Prove that a workload computes the same as one process: gradients, losses, weights.

    Exit code: 0 equivalent, 1 it failed, 20 mismatch, 21 a check without power, 22 not exercised.
    """
    if all_recipes and recipe != Recipe():
        raise SettingError("--all tries every recipe; leave the options of one recipe out")
    session = open_session(device, seed)  # which holds nothing, as nothing is timed
    num_failed = 0
    if all_recipes:
        reports, num_failed = _verify_all(session, workload, num_steps)
    else:
        reports = [session.verify(workload, recipe, num_steps=num_steps)]
    typer.echo(equivalence_table(reports))
    for text in explanations(reports, every_row=not all_recipes):
        typer.echo(text)
    if all_recipes:
        counted = Counter[str](report.status for report in reports)
        counted.update({"not exercised": -num_failed, "failed": num_failed})
        names = (*experiment.EXIT_CODES, "failed")
        typer.echo(", ".join(f"{counted[name]} {name}" for name in names if counted[name]))
    write_json(json_file, rows=[row for report in reports for row in report.rows])
    code = experiment.exit_code(reports, of_table=all_recipes)
    raise typer.Exit(ExitCode.FAILED if num_failed else code)


def _verify_all(session: Session, name: str, num_steps: int) -> tuple[list[EquivalenceReport], int]:
    find_workload(name)
    recipes = experiment.every_recipe()
    reports, num_failed = [], 0
    console = Console(stderr=True, highlight=False)
    with console.status(f"0 of {len(recipes)} recipes") as status:
        for report, fails in experiment.verify_every(session, name, recipes, num_steps):
            reports.append(report)
            num_failed += fails
            done = f"{len(reports)} of {len(recipes)} recipes: {report.recipe['parallel']}"
            status.update(done)
            if not console.is_terminal:
                say(f"{done}, {report.status}")
    return reports, num_failed
