"""Trackers: what their own readers find in what their own clients wrote."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import wandb
from made_up_runs import benchmark, record, verdict, write_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from perfsuite.errors import SettingError, WriteError
from perfsuite.report.formats.trackers import log_to_mlflow, log_to_tensorboard, log_to_wandb
from perfsuite.report.model import report_on_runs
from perfsuite.report.runs import Run, read_runs

PLAIN = benchmark("plain", (0.5,))


def runs(tmp_path: Path, name: str = "t.py::a[../../x]") -> tuple[Run, ...]:
    made = record(
        losses=(2.5, 1.25),
        counts={"flops": 10},
        parallel="ddp:2",
        num_workers=2,
        given=verdict("PASS", ratio=0.5),
    )
    ours = benchmark(name, (0.25, 0.5, 0.125), made)
    return read_runs([write_run(tmp_path / "run.json", ours, PLAIN)])


def read_events(folder: Path) -> dict[str, EventAccumulator]:
    """What TensorBoard reads, by the beginning of the cell's folder."""
    found = {}
    for path in sorted(folder.glob("*/*")):
        accumulator = EventAccumulator(str(path))
        accumulator.Reload()
        found[path.name.rpartition("-")[0]] = accumulator
    return found


def test_tensorboard_reads_rounds_and_losses_along_the_step_axis(tmp_path: Path) -> None:
    log_to_tensorboard(runs(tmp_path), tmp_path / "events")

    cell = read_events(tmp_path / "events")["t-py-a-x"]
    rounds = [(event.step, event.value) for event in cell.Scalars("step_time_s")]
    losses = [(event.step, event.value) for event in cell.Scalars("loss")]
    assert rounds == [(1, 0.25), (2, 0.5), (3, 0.125)]
    assert losses == [(1, 2.5), (2, 1.25)]


def test_tensorboard_reads_totals_and_none_of_what_is_not_available(tmp_path: Path) -> None:
    log_to_tensorboard(runs(tmp_path), tmp_path / "events")

    cells = read_events(tmp_path / "events")
    (flops,) = cells["t-py-a-x"].Scalars("cell/flops")
    assert (flops.step, flops.value) == (0, 10.0)
    assert cells["t-py-a-x"].Scalars("cell/median_step_time_s")[0].value == 0.25
    assert "cell/peak_bytes" not in cells["t-py-a-x"].Tags()["scalars"]
    assert sorted(cells["plain"].Tags()["scalars"]) == ["cell/median_step_time_s", "step_time_s"]


def test_sessions_of_one_minute_are_runs_of_their_own(tmp_path: Path) -> None:
    for second in (29, 30):
        run = write_run(
            tmp_path / "run.json", PLAIN, datetime=f"2026-11-21T15:02:{second}.852122+00:00"
        )
        log_to_tensorboard(read_runs([run]), tmp_path / "events")

    assert len(list((tmp_path / "events").iterdir())) == 2


def test_events_that_cannot_be_written_leave_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(WriteError, match=r"^cannot write .*tfevents.*: No space left on device$"):
        log_to_tensorboard(runs(tmp_path), tmp_path / "events")

    assert [path for path in (tmp_path / "events").rglob("*") if path.is_file()] == []


def test_tensorboards_hyperparameters_are_the_recipe(tmp_path: Path) -> None:
    log_to_tensorboard(runs(tmp_path), tmp_path / "events")

    cell = read_events(tmp_path / "events")["t-py-a-x"]
    content = cell.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    data = plugin_data_pb2.HParamsPluginData.FromString(content)
    hparams = data.session_start_info.hparams
    assert hparams["parallel"].string_value == "ddp:2"
    assert hparams["num_workers"].number_value == 2
    assert hparams["workload"].string_value == "lenet"
    assert "clip_grad_norm" not in hparams


def test_a_hostile_name_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    log_to_tensorboard(runs(tmp_path, "../" * 9 + "x" * 300), tmp_path / "in" / "events")

    files = list(tmp_path.rglob("events.out.*"))
    assert len(files) == 2
    assert all(path.is_relative_to(tmp_path / "in" / "events") for path in files)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(WriteError, match=r"cannot write .*file/.*: Not a directory"):
        log_to_tensorboard(runs(tmp_path), tmp_path / "file")


@pytest.mark.parametrize("extra", ["mlflow", "tensorboard", "wandb"])
def test_a_missing_package_is_one_line_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == extra]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(extra), *sys.meta_path])
    found = runs(tmp_path)

    def log() -> None:
        if extra == "wandb":
            log_to_wandb(found, report_on_runs(found))
        elif extra == "mlflow":
            log_to_mlflow(found)
        else:
            log_to_tensorboard(found, tmp_path)

    with pytest.raises(SettingError) as refused:
        log()

    assert str(refused.value) == f"{extra} is not installed: pip install 'perfsuite[{extra}]'"


def test_a_client_that_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("api_key not configured (no-tty).\nmore")

    monkeypatch.setattr(wandb, "init", refuse)
    found = runs(tmp_path)

    with pytest.raises(SettingError) as refused:
        log_to_wandb(found, report_on_runs(found))

    assert str(refused.value) == (
        "--wandb: the client refuses: api_key not configured (no-tty); log in with 'wandb login', "
        "or set WANDB_MODE=offline"
    )


class Missing:
    """A finder to which one package is not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=self._package)


# --- Weights & Biases ---


def read_offline(folder: Path) -> dict[str, dict[str, Any]]:
    """What W&B's own reader of offline runs finds in each: what `wandb sync` would send."""
    found = {}
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        run: dict[str, Any] = {"config": {}, "axes": {}, "history": [], "summary": {}, "files": []}
        name = ""
        for one in inspect(path):
            kind = one["type"]
            content = one.get(kind, {})
            if kind == "run":
                name = content["display_name"]
                run["group"] = content.get("run_group")
                run["config"] = content["config"]["update"]
            elif kind == "metric":
                run["axes"][content["name"]] = content["step_metric"]
            elif kind == "history":
                run["history"].append({k: v for k, v in content["item"].items() if k[0] != "_"})
            elif kind == "summary":
                run["summary"] |= content["update"]
            elif kind == "artifact":
                run["files"] += [entry["path"] for entry in content["manifest"]["contents"]]
        found[name] = run
    return found


def inspect(path: Path) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
def test_an_offline_run_of_wandb_can_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (
        ("MODE", "offline"),
        ("DIR", str(tmp_path)),
        ("SILENT", "true"),
        ("ERROR_REPORTING", "false"),
    ):
        monkeypatch.setenv(f"WANDB_{name}", value)
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / name))
    found = runs(tmp_path)

    log_to_wandb(found, report_on_runs(found))

    tracked = read_offline(tmp_path)
    assert tracked.keys() == {"t.py::a[../../x]", "plain", "report"}
    cell = tracked["t.py::a[../../x]"]
    assert cell["group"] == "run 2026-11-21 15:02 UTC"
    assert (cell["config"]["parallel"], cell["config"]["num_workers"]) == ("ddp:2", 2)
    assert cell["axes"] == {"step_time_s": "round", "loss": "step"}
    assert cell["history"] == [
        {"round": 1, "step_time_s": 0.25, "step": 1, "loss": 2.5},
        {"round": 2, "step_time_s": 0.5, "step": 2, "loss": 1.25},
        {"round": 3, "step_time_s": 0.125},
    ]
    assert (cell["summary"]["verdict"], cell["summary"]["cell/flops"]) == ("PASS", 10)
    assert {"report/index.html", "runs/0-run.json"} <= set(tracked["report"]["files"])


# --- MLflow ---


@pytest.fixture
def mlflow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client stores what a server would."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return tmp_path / "mlruns"


def test_mlflow_reads_rounds_and_losses_along_the_step_axis(
    tmp_path: Path, mlflow_folder: Path
) -> None:
    log_to_mlflow(runs(tmp_path))

    client = mlflow.MlflowClient(mlflow_folder.as_uri())
    experiment = client.get_experiment_by_name("perfsuite")
    logged = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert logged.keys() == {"t.py::a[../../x]", "plain"}
    run = logged["t.py::a[../../x]"]

    def series(tag: str) -> list[tuple[int, float]]:
        found = client.get_metric_history(run.info.run_id, tag)
        return sorted((one.step, one.value) for one in found)

    assert series("step_time_s") == [(1, 0.25), (2, 0.5), (3, 0.125)]
    assert series("loss") == [(1, 2.5), (2, 1.25)]
    assert series("cell/flops") == [(0, 10.0)]
    assert (run.data.params["parallel"], run.data.params["num_workers"]) == ("ddp:2", "2")
    assert (run.data.tags["verdict"], run.info.status) == ("PASS", "FINISHED")
    assert "cell/peak_bytes" not in run.data.metrics
    assert logged["plain"].data.metrics.keys() == {"step_time_s", "cell/median_step_time_s"}


def test_a_place_that_mlflow_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")

    with pytest.raises(SettingError) as refused:
        log_to_mlflow(runs(tmp_path))

    assert re.fullmatch(
        r"--mlflow: the client refuses: [^\n]*gopher[^\n]*; set MLFLOW_TRACKING_URI",
        str(refused.value),
    )
