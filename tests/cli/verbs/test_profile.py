"""The verb profile: what it prints, which files it leaves, and how mistakes end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from json_schemas import assert_valid
from profile_example import PROFILE
from typer.testing import CliRunner

from perfsuite.cli import app
from perfsuite.cli.verbs import profile as profile_module
from perfsuite.records.profile import Profile, ProfiledRun, ProfilerOutput
from perfsuite.records.recipe import Recipe
from perfsuite.report.formats.csv_file import profile_csv
from perfsuite.report.formats.latex import profile_latex
from perfsuite.report.terminal.profile import profile_lines
from perfsuite.system.json_files import read_json_as

FILES = {
    "profile.tex",
    "profile.csv",
    "profile.svg",
    "profile.pdf",
    "profile.png",
    "trace.json",
    "operators.txt",
    "memory.txt",
}


class FakeSession:
    """Profiles nothing, and notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def profile(self, workload: str, recipe: Recipe, *, num_epochs: int) -> ProfiledRun:
        self.asked.append((workload, recipe, num_epochs))
        profiler = ProfilerOutput(
            operators=PROFILE.operators,
            num_steps=PROFILE.num_profiled_steps,
            communication=PROFILE.communication,
            trace=b"{}",
            operator_table="operators",
            memory_summary="memory",
        )
        return ProfiledRun(profile=PROFILE, profiler=profiler)

    def close(self) -> None:
        self.asked.append("closed")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    """What the verb opens, in an empty folder."""
    fake = FakeSession()
    monkeypatch.setattr(profile_module, "open_session", lambda device, seed: fake)
    monkeypatch.chdir(tmp_path)
    return fake


def test_the_profile_is_shown_and_every_file_written(session: FakeSession, tmp_path: Path) -> None:
    ended = CliRunner().invoke(
        app.app,
        ["profile", "lenet", "--parallel", "ddp:2", "--epochs", "3", "--json", "deep/p.json"],
    )

    assert ended.exit_code == 0, ended.output
    assert session.asked == [("lenet", Recipe(parallel="ddp:2"), 3), "closed"]
    *table, written = ended.stdout.splitlines()
    assert "\n".join(table) == "\n".join(profile_lines(PROFILE))
    assert set(written.removeprefix("written to results: ").split(", ")) == FILES
    assert ended.stderr == "training lenet for 3 epochs\n"
    results = tmp_path / "results"
    assert {path.name for path in results.iterdir()} == FILES | {".gitignore"}
    assert (results / "profile.tex").read_text() == profile_latex(PROFILE)
    assert (results / "profile.csv").read_text() == profile_csv(PROFILE)
    assert (results / "trace.json").read_bytes() == b"{}"
    assert read_json_as(tmp_path / "deep" / "p.json", Profile) == PROFILE
    assert_valid("profile", json.loads((tmp_path / "deep" / "p.json").read_text()))


def test_a_file_that_cannot_be_written_ends_in_12(
    session: FakeSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "results").write_text("")
    monkeypatch.setattr(sys, "argv", ["perfsuite", "profile", "lenet"])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 12
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "perfsuite: cannot write results/trace.json: Not a directory"


@pytest.mark.slow
def test_a_real_training_leaves_a_profile_with_the_keys_of_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    ended = CliRunner().invoke(
        app.app, ["profile", "toy-mlp", "--epochs", "1", "--device", "cpu", "--json", "p.json"]
    )

    assert ended.exit_code == 0, ended.output
    document = json.loads((tmp_path / "p.json").read_text())
    assert_valid("profile", document)
    assert (document["workload"], document["recipe"]) == ("toy-mlp", Recipe().as_dict())
    stages = document["stages_s"]
    assert list(stages) == ["load", "forward", "loss_backward", "evaluation", "other"]
    assert sum(stages.values()) == pytest.approx(document["wall_s"], rel=0.01)
    assert set(document["accuracy_per_class"]) == {str(label) for label in range(10)}
    (epoch,) = document["epochs"]
    assert epoch["loss"] == pytest.approx(sum(document["losses"]) / len(document["losses"]))
    assert epoch["duration_s"] == document["wall_s"]
    assert len(document["operators"]) == 10
    assert set(document["operators"][0]) == {"name", "calls", "self_s"}
    assert json.loads((tmp_path / "results" / "trace.json").read_text())["traceEvents"]
    assert "[rank" not in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "workload 'nothing' is not known; use one of lenet-digits, "),
        (["toy-mlp", "--parallel", "ddp:0"], "parallel 'ddp:0' has a size of 0, "),
        (["toy-mlp", "--device", "tpu"], "--device is 'tpu'; use one of auto, cpu, cuda\n"),
        (
            ["toy-mlp", "--device", "cpu", "--parallel", "dp:2"],
            "parallel 'dp:2': nn.DataParallel silently runs the plain module on cpu; "
            "it needs a CUDA device\n",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["perfsuite", "profile", *arguments])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert last.startswith(f"perfsuite: {message}")
    assert list(tmp_path.iterdir()) == []
