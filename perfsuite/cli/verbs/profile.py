"""The verb `profile`: where the time of a real training goes."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfsuite.cli.options import DeviceName, Seed, WorkloadName, open_session, takes_recipe
from perfsuite.cli.output import JsonFile, say, write_json
from perfsuite.errors import import_extra
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.pie import FORMATS, draw_pie
from perfsuite.report.formats.csv_file import profile_csv
from perfsuite.report.formats.latex import profile_latex
from perfsuite.report.terminal.profile import profile_lines
from perfsuite.system.files import check_writable, write_atomically

_FOLDER = Path("results")


@takes_recipe
def profile(
    workload: WorkloadName,
    *,
    recipe: Recipe,
    num_epochs: Annotated[int, typer.Option("--epochs", min=1, help="Epochs to train.")] = 2,
    device: DeviceName = "auto",
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Train for real and say where the time goes: load, forward, loss + backward, evaluation.

    Writes results/profile.tex, .csv, .svg, .pdf and .png, and from a few steps under torch.profiler
    after the last epoch results/trace.json, operators.txt and memory.txt.
    """
    recipe.require_own_loader()
    check_writable(_FOLDER / "trace.json")
    import_extra("matplotlib", "plots")  # before the training, which takes minutes
    with closing(open_session(device, seed)) as session:
        say(f"training {workload} for {num_epochs} {'epoch' if num_epochs == 1 else 'epochs'}")
        run = session.profile(workload, recipe, num_epochs=num_epochs)
    typer.echo("\n".join(profile_lines(run.profile)))
    files = {
        "profile.tex": profile_latex(run.profile).encode(),
        "profile.csv": profile_csv(run.profile).encode(),
        **{f"profile.{kind}": draw_pie(run.profile, kind) for kind in FORMATS},
        "trace.json": run.profiler.trace,
        "operators.txt": run.profiler.operator_table.encode(),
        "memory.txt": run.profiler.memory_summary.encode(),
    }
    for name, data in files.items():
        write_atomically(_FOLDER / name, data)
    typer.echo(f"written to {_FOLDER}: {', '.join(files)}")
    write_json(json_file, **msgspec.structs.asdict(run.profile))
