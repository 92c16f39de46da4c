"""The verb `report`: what runs say, in every format."""

from pathlib import Path
from typing import Annotated

import typer

from perfsuite.cli.options import explained
from perfsuite.cli.output import JsonFile, pick, require_apart, write_json
from perfsuite.errors import ExitCode
from perfsuite.report.charts.learning_curves import read_trainings
from perfsuite.report.formats import trackers
from perfsuite.report.formats.csv_file import to_csv
from perfsuite.report.formats.folder import PAGE, write_folder
from perfsuite.report.formats.latex import to_latex
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.model import Report, report_on_runs
from perfsuite.report.runs import Run, read_runs, with_reasons
from perfsuite.report.shards import merge_shards
from perfsuite.report.terminal.tables import report_table, text_table
from perfsuite.system.files import write_atomically
from perfsuite.system.untrusted import printable
from perfsuite.system.urls import locate
from perfsuite.units import option_bounds


@explained(
    runs="Files of pytest-benchmark, by path or URL.",
    profiles="Show its learning curve; repeatable.",
    html="Write index.html there, all else beside it.",
    markdown="For a summary or a comment.",
    latex="A table.",
    csv="Every number, in base units.",
    bencher="Bencher Metric Format.",
    github_action_benchmark="For its tool customSmallerIsBetter.",
    hud="Records of PyTorch's HUD, v3.",
    tensorboard="Write event files, one folder a cell.",
    wandb="Log to Weights & Biases; WANDB_MODE=offline is honoured.",
    mlflow="Log to MLflow; MLFLOW_TRACKING_URI is honoured.",
    require_verdicts="End in 12 where a cell has no verdict.",
    tolerance="What verdicts are drawn against; 0.4 of the limit unless given.",
    limit="What verdicts are drawn against.",
)
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN.json...")],
    profiles: Annotated[list[Path] | None, typer.Option("--profile", metavar="FILE")] = None,
    html: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    bencher: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    github_action_benchmark: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    hud: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
    wandb: Annotated[bool, typer.Option("--wandb")] = False,
    mlflow: Annotated[bool, typer.Option("--mlflow")] = False,
    require_verdicts: Annotated[bool, typer.Option("--require-verdicts")] = False,
    tolerance: str | None = None,
    limit: str = "5%",
    json_file: JsonFile = None,
) -> None:
    """Report on runs: verdicts, times, stages, memory, and what the numbers advise.

    Each cell is shown as the newest run has it; the other runs are its history. The shards of a
    session are one run. Files of 'perfsuite profile --json' add their learning curves; those that
    differ only in precision share a chart. Without an option the table is printed.

    Exit code: 12 where shards leave out a part of their session, or a required verdict is missing.
    """
    bounds = option_bounds(tolerance, limit)
    files = {to_markdown: markdown, to_latex: latex, to_csv: csv, trackers.to_bencher: bencher}
    files |= {trackers.to_hud: hud, trackers.to_action_benchmark: github_action_benchmark}
    require_apart([*runs, *(profiles or ())], [*files.values(), json_file])
    paths = [locate(run, "RUN.json") for run in runs]
    found = merge_shards(tuple(map(with_reasons, read_runs(paths))))
    trainings = read_trainings(profiles or ())
    made = report_on_runs(found, trainings)._replace(tolerance=bounds[0], limit=bounds[1])
    typer.echo(" ".join(filter(None, [made.summary.word, made.summary.text])))
    for text in found[-1].remarks:
        typer.echo(printable(text))
    if html is not None:
        write_folder(made, html)
        typer.echo(f"written to {html / PAGE}")
    for write, path in files.items():
        if path is not None:
            write_atomically(path, write(made).encode())
            typer.echo(f"written to {path}")
    if tensorboard is not None:
        trackers.log_to_tensorboard(found, tensorboard)
        typer.echo(f"written to {tensorboard}")
    if not any((html, *files.values(), tensorboard, wandb, mlflow)):
        _print(made)
    code = _end_code(found[-1], require_verdicts=require_verdicts)
    keys = "id step_time_s spread_ratio verdict record note"
    write_json(
        json_file,
        **pick(made.summary, "word text"),
        **pick(found[-1], "gaps unjudged"),
        advice=[pick(one, "text evidence") for one in made.advice],
        cells=[pick(row, keys, id="name") for row in made.rows],
        exit_code=code,
    )
    if mlflow:
        trackers.log_to_mlflow(found)
    if wandb:
        trackers.log_to_wandb(found, made)
    raise typer.Exit(code)


def _print(made: Report) -> None:
    typer.echo(report_table(made.rows))
    for section in made.sections:
        for grid in section.grids:
            typer.echo(f"{grid.title}\n{text_table(grid.columns, grid.rows)}")
        for note in section.notes:
            typer.echo(note)
    for advice in made.advice:
        typer.echo(f"{advice.text} ({advice.evidence})")


def _end_code(run: Run, *, require_verdicts: bool) -> ExitCode:
    """What a report on the newest run ends in; it says of each cell that it misses."""
    if require_verdicts:
        for name in run.unjudged:
            typer.echo(f"{name}: no verdict (--require-verdicts)")
    # A runner that reports on its own shard knows that it lacks the others.
    is_incomplete = bool(run.gaps) and (require_verdicts or len(run.parts) > 1)
    is_unjudged = require_verdicts and bool(run.unjudged)
    return ExitCode.REFUSED if is_incomplete or is_unjudged else ExitCode.OK
