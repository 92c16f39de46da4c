"""Runs in experiment trackers, by the trackers' own clients: TensorBoard and Weights & Biases.

One tracked run is one cell of one file: rounds and losses along the step axis, the recipe as its
configuration, everything else as its summary. The clients are optional extras, imported only here.
"""

import hashlib
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from perfsuite.errors import SettingError, WriteError, import_extra
from perfsuite.report.formats.folder import write_folder
from perfsuite.report.model import Report
from perfsuite.report.rows import COLUMNS, Row
from perfsuite.report.runs import Run
from perfsuite.system.json_files import read_bytes

# The one is a series, the other a part of the configuration.
_LOGGED_ELSEWHERE: Final = ("step_time_s", "num_workers")
_PROJECT: Final = "perfsuite"
# A folder's name may have 255 bytes, and the trackers add to it.
_MOST_NAME_CHARACTERS: Final = 120


def log_to_tensorboard(runs: Sequence[Run], folder: Path) -> None:
    """Write `folder`/run/cell for each cell of each run; raises a SettingError, or a WriteError."""
    writers = import_extra("tensorboard.summary.writer.event_file_writer", "tensorboard")
    hparams = import_extra("tensorboard.plugins.hparams.summary_v2", "tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for run in runs:
        wall_time_s = run.saved_at.timestamp()
        for row in run.measured:
            path = folder / _file_name(f"{run.when} {run.path.stem}") / _file_name(row.name)
            try:
                writer = writers.EventFileWriter(str(path))
            except OSError as error:
                raise WriteError(f"cannot write {path}: {error.strerror or error}") from error
            if row.recipe is not None:
                summary = hparams.hparams_pb(_config(row), start_time_secs=wall_time_s)
                writer.add_event(Event(wall_time=wall_time_s, step=0, summary=summary))
            for tag, step, value in (*_series(row), *((t, 0, v) for t, v in _totals(row))):
                scalar = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(wall_time=wall_time_s, step=step, summary=scalar))
            writer.close()


def log_to_wandb(runs: Sequence[Run], report: Report) -> None:
    """Log one run for each cell of each run, and one with the files and the report.

    The client's own environment variables decide whether it sends anything. Raises a SettingError
    where wandb is not installed, or its client refuses, and a WriteError.
    """
    wandb = import_extra("wandb", "wandb")
    try:
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
    except wandb.errors.Error as error:
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"--wandb: the client refuses: {reason}; log in with 'wandb login', or set "
            "WANDB_MODE=offline"
        ) from error


def _log_cell(wandb: Any, row: Row, group: str) -> None:
    with wandb.init(
        project=_PROJECT, group=group, job_type="cell", name=row.name, config=_config(row)
    ) as tracked:
        # Rounds and optimizer steps need two axes, and a run has one step counter.
        axes = {"step_time_s": "round", "loss": "step"}
        for tag, axis in axes.items():
            tracked.define_metric(tag, step_metric=axis)
        for tag, step, value in _series(row):
            tracked.log({axes[tag]: step, tag: value})
        tracked.summary.update(dict(_totals(row)))
        if row.verdict is not None:
            tracked.summary["verdict"] = row.verdict.word


def _config(row: Row) -> dict[str, Any]:
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


def _series(row: Row) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of what was measured more than once; steps count from 1."""
    for number, seconds in enumerate(row.rounds_s, 1):
        yield "step_time_s", number, seconds
    for step, loss in enumerate(row.record.losses if row.record else (), 1):
        yield "loss", step, loss


def _totals(row: Row) -> Iterator[tuple[str, float]]:
    """Tag and value of each available number that a cell has only once."""
    for column in COLUMNS:
        value = None if column.key in _LOGGED_ELSEWHERE else column.value(row)
        if isinstance(value, int | float) and math.isfinite(value):
            yield f"cell/{column.key}", value
    if row.step_time_s is not None:
        yield "cell/median_step_time_s", row.step_time_s
    for name, seconds in row.stages_s.items():
        yield f"stages_s/{name}", seconds


def _file_name(text: str) -> str:
    """A name for a folder: unique to the text, and without path separators."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    readable = re.sub(r"[^A-Za-z0-9=+-]+", "-", text).strip("-")[-_MOST_NAME_CHARACTERS:]
    return f"{readable}-{digest}"
