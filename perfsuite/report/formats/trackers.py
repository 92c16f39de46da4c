"""What trackers and dashboards read; what was not measured of a cell has no number.

TensorBoard, Weights & Biases and MLflow get a run for each cell of each file, by their own clients,
which are optional extras: rounds and losses along the step axis, the recipe as configuration, all
else as summary. The other formats have their sources beside them.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfsuite.errors import SettingError, import_extra
from perfsuite.report.formats.folder import file_name, write_folder
from perfsuite.report.model import Report
from perfsuite.report.rows import Row, numbers_of
from perfsuite.report.runs import Run
from perfsuite.system import files
from perfsuite.system.json_files import read_bytes

_PROJECT = "perfsuite"
# What is better the smaller it is, with its unit.
_COSTS = {
    "step_time_s": "s",
    "peak_bytes": "bytes",
    "saved_activation_bytes": "bytes",
    "flops": "FLOP",
    "collectives": "collectives",
}


def log_to_tensorboard(runs: Sequence[Run], folder: Path) -> None:
    """Write `folder`/run/cell for each cell of each run."""
    records = import_extra("tensorboard.summary.writer.record_writer", "tensorboard")
    hparams = import_extra("tensorboard.plugins.hparams.summary_v2", "tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for run, row in _measured(runs):
        wall_time_s = run.saved_at.timestamp()
        of_run = file_name(f"{run.saved_at.isoformat()} {Path(run.path.name).stem}")
        path = folder / of_run / file_name(row.name) / f"events.out.tfevents.{wall_time_s:.0f}"
        events = [Event(wall_time=wall_time_s, file_version="brain.Event:2")]
        if row.recipe is not None:
            summary = hparams.hparams_pb(_config_of(row), start_time_secs=wall_time_s)
            events.append(Event(wall_time=wall_time_s, step=0, summary=summary))
        for step, numbers in _logged(row).items():
            values = [Summary.Value(tag=tag, simple_value=one) for tag, one in numbers.items()]
            summary = Summary(value=values)
            events.append(Event(wall_time=wall_time_s, step=step, summary=summary))
        written = io.BytesIO()
        for event in events:
            records.RecordWriter(written).write(event.SerializeToString())
        files.write_atomically(path, written.getvalue())


def log_to_wandb(runs: Sequence[Run], report: Report) -> None:
    """Log one run for each cell of each run, and one with the files and the report."""
    wandb = import_extra("wandb", "wandb")
    advice = "log in with 'wandb login', or set WANDB_MODE=offline"
    with _explained("--wandb", wandb.errors.Error, advice):
        for run, row in _measured(runs):
            _log_cell(wandb, row, f"{Path(run.path.name).stem} {run.when}")
        with (
            tempfile.TemporaryDirectory() as folder,
            wandb.init(project=_PROJECT, job_type="report", name="report") as tracked,
        ):
            write_folder(report, Path(folder))
            artifact = wandb.Artifact("report", type="report")
            artifact.add_dir(folder, name="report")
            for number, part in enumerate(part for run in runs for part in run.parts or (run,)):
                with artifact.new_file(f"runs/{number}-{part.path.name}", mode="xb") as file:
                    file.write(read_bytes(part.path))
            tracked.log_artifact(artifact)
            tracked.summary["verdict"] = report.summary.word
            tracked.summary["cells"] = report.summary.text


def log_to_mlflow(runs: Sequence[Run]) -> None:
    """Log one run for each cell of each run, to where MLFLOW_TRACKING_URI leads."""
    mlflow = import_extra("mlflow", "mlflow")
    with _explained("--mlflow", mlflow.exceptions.MlflowException, "set MLFLOW_TRACKING_URI"):
        mlflow.set_experiment(_PROJECT)
        for _, row in _measured(runs):
            tags = {} if row.verdict is None else {"verdict": row.verdict.word}
            with mlflow.start_run(run_name=row.name, tags=tags):
                mlflow.log_params(_config_of(row))
                for step, numbers in _logged(row).items():
                    mlflow.log_metrics(numbers, step=step)


@contextlib.contextmanager
def _explained(option: str, refusal: type[Exception], advice: str) -> Iterator[None]:
    try:
        yield
    except refusal as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SettingError(f"{option}: the client refuses: {reason}; {advice}") from error


def _log_cell(wandb: Any, row: Row, group: str) -> None:
    about = {"group": group, "name": row.name, "config": _config_of(row)}
    with wandb.init(project=_PROJECT, job_type="cell", **about) as tracked:
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


def _measured(runs: Sequence[Run]) -> Iterator[tuple[Run, Row]]:
    return ((run, row) for run in runs for row in run.rows if row.step_time_s is not None)


def _config_of(row: Row) -> dict[str, Any]:
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


def to_bencher(report: Report) -> str:
    """Return a benchmark for each cell; a step's bounds are its spread over rounds."""
    # bencher.dev/docs/reference/bencher-metric-format
    cells = {}
    for row in report.rows:
        measures = {key: {"value": value} for key, value in numbers_of(row).items()}
        if row.step_time_s is not None and row.spread_ratio is not None:
            low, high = (row.step_time_s * (1 + sign * row.spread_ratio) for sign in (-1, 1))
            measures["step_time_s"] |= {"lower_value": low, "upper_value": high}
        cells[row.name] = measures
    return json.dumps(cells, indent=1) + "\n"


def to_action_benchmark(report: Report) -> str:
    """Return an entry for each number of each cell that is better the smaller it is."""
    # `BenchmarkResult` in benchmark-action/github-action-benchmark, src/extract.ts
    entries = [
        {"name": f"{row.name} {key}", "unit": _COSTS[key], "value": value}
        for row in report.rows
        for key, value in numbers_of(row).items()
        if key in _COSTS
    ]
    return json.dumps(entries, indent=1) + "\n"


def to_hud(report: Report) -> str:
    """Return a record for each number of each cell; the upload adds repository and commit."""
    # "Benchmark results format" in pytorch/pytorch, wiki page PyTorch-OSS-benchmark-infra, and
    # pytorch/test-infra, clickhouse_db_schema/oss_ci_benchmark_v3
    records = []
    for row in report.rows:
        about = {key: str(value) for key, value in _config_of(row).items()}
        evaluated = "inference" if "evaluation" in row.stages_s else ""
        mode = "training" if "backward" in row.stages_s else evaluated
        precision = about.get("precision", "")
        benchmark = {"name": "perfsuite", "mode": mode, "dtype": precision, "extra_info": about}
        model = {"name": row.name, "type": row.subject or ""}
        for key, value in numbers_of(row).items():
            values = row.rounds_s if key == "step_time_s" and row.rounds_s else (value,)
            metric = {"name": key, "benchmark_values": values}
            records.append({"benchmark": benchmark, "model": model, "metric": metric})
    return json.dumps(records, indent=1) + "\n"
