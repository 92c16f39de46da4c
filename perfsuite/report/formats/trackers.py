"""Runs in experiment trackers, by their own clients: TensorBoard, Weights & Biases, MLflow.

One tracked run is one cell of one file: rounds and losses along the step axis, the recipe as its
configuration, everything else as its summary. The clients are optional extras, imported only here.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from perfsuite.errors import SettingError, WriteError, import_extra
from perfsuite.report.formats.folder import file_name, write_folder
from perfsuite.report.model import Report
from perfsuite.report.rows import Row, numbers_of
from perfsuite.report.runs import Run
from perfsuite.system.json_files import read_bytes

_PROJECT: Final = "perfsuite"


def log_to_tensorboard(runs: Sequence[Run], folder: Path) -> None:
    """Write `folder`/run/cell for each cell of each run; raises a SettingError, or a WriteError."""
    writers = import_extra("tensorboard.summary.writer.event_file_writer", "tensorboard")
    hparams = import_extra("tensorboard.plugins.hparams.summary_v2", "tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for run in runs:
        wall_time_s = run.saved_at.timestamp()
        for row in run.measured:
            path = folder / file_name(f"{run.when} {run.path.stem}") / file_name(row.name)
            try:
                writer = writers.EventFileWriter(str(path))
            except OSError as error:
                raise WriteError(f"cannot write {path}: {error.strerror or error}") from error
            if row.recipe is not None:
                summary = hparams.hparams_pb(config_of(row), start_time_secs=wall_time_s)
                writer.add_event(Event(wall_time=wall_time_s, step=0, summary=summary))
            for step, numbers in _logged(row).items():
                values = [Summary.Value(tag=tag, simple_value=one) for tag, one in numbers.items()]
                summary = Summary(value=values)
                writer.add_event(Event(wall_time=wall_time_s, step=step, summary=summary))
            writer.close()


def log_to_wandb(runs: Sequence[Run], report: Report) -> None:
    """Log one run for each cell of each run, and one with the files and the report.

    The client's own environment variables decide whether it sends anything. Raises a SettingError
    where wandb is not installed, or its client refuses, and a WriteError.
    """
    wandb = import_extra("wandb", "wandb")
    with _explained(
        "--wandb", wandb.errors.Error, "log in with 'wandb login', or set WANDB_MODE=offline"
    ):
        for run in runs:
            for row in run.measured:
                _log_cell(wandb, row, f"{run.path.stem} {run.when}")
        with (
            tempfile.TemporaryDirectory() as folder,
            wandb.init(project=_PROJECT, job_type="report", name="report") as tracked,
        ):
            write_folder(report, Path(folder))
            artifact = wandb.Artifact("report", type="report")
            artifact.add_dir(folder, name="report")
            for number, run in enumerate(runs):
                with artifact.new_file(f"runs/{number}-{run.path.name}", mode="xb") as file:
                    file.write(read_bytes(run.path))
            tracked.log_artifact(artifact)
            tracked.summary["verdict"] = report.summary.word
            tracked.summary["cells"] = report.summary.text


def log_to_mlflow(runs: Sequence[Run]) -> None:
    """Log one run for each cell of each run, to where MLFLOW_TRACKING_URI leads.

    Raises a SettingError where mlflow is not installed, or its client refuses.
    """
    mlflow = import_extra("mlflow", "mlflow")
    with _explained("--mlflow", mlflow.exceptions.MlflowException, "set MLFLOW_TRACKING_URI"):
        mlflow.set_experiment(_PROJECT)
        for row in (row for run in runs for row in run.measured):
            tags = {} if row.verdict is None else {"verdict": row.verdict.word}
            with mlflow.start_run(run_name=row.name, tags=tags):
                mlflow.log_params(config_of(row))
                for step, numbers in _logged(row).items():
                    mlflow.log_metrics(numbers, step=step)


@contextlib.contextmanager
def _explained(option: str, refusal: type[Exception], advice: str) -> Iterator[None]:
    try:
        yield
    except refusal as error:
        reason = str(error).splitlines()[0]
        raise SettingError(f"{option}: the client refuses: {reason}; {advice}") from error


def _log_cell(wandb: Any, row: Row, group: str) -> None:
    with wandb.init(
        project=_PROJECT, group=group, job_type="cell", name=row.name, config=config_of(row)
    ) as tracked:
        # Rounds and optimizer steps need two axes, and a run has one step counter.
        axes = {"step_time_s": "round", "loss": "step"}
        for tag, axis in axes.items():
            tracked.define_metric(tag, step_metric=axis)
        totals, *series = _logged(row).items()
        for step, numbers in series:
            tracked.log({**numbers, **{axes[tag]: step for tag in numbers}})
        tracked.summary.update(totals[1])
        if row.verdict is not None:
            tracked.summary["verdict"] = row.verdict.word


def config_of(row: Row) -> dict[str, Any]:
    """The recipe and what it was run on; a field that is None is the default's."""
    if row.record is None or row.recipe is None:
        return {}
    config = {
        "workload": row.subject,
        "device": row.record.device,
        "world_size": row.record.world_size,
        "fingerprint": row.record.fingerprint,
        **row.recipe.as_dict(),
    }
    return {name: value for name, value in config.items() if value is not None}


def _logged(row: Row) -> dict[int, dict[str, float]]:
    """The numbers at each step by their tags; rounds and losses count from 1, all else is at 0."""
    # The name without "median" is that of the rounds.
    totals = {
        f"cell/{'median_' * (key == 'step_time_s')}{key}": value
        for key, value in numbers_of(row).items()
    }
    steps = {0: totals | {f"stages_s/{name}": seconds for name, seconds in row.stages_s.items()}}
    series = {"step_time_s": row.rounds_s, "loss": row.record.losses if row.record else ()}
    for tag, values in series.items():
        for step, value in enumerate(values, 1):
            steps.setdefault(step, {})[tag] = value
    return steps
