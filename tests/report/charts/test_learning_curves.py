"""Learning curves: precisions share a chart, and an invalid profile is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_up_runs import HOSTILE, benchmark, write_run
from profile_example import PROFILE, STAGES
from typer.testing import CliRunner

from perfsuite.cli.app import app
from perfsuite.errors import SettingError
from perfsuite.records.profile import Epoch
from perfsuite.records.recipe import Recipe
from perfsuite.report.charts.learning_curves import draw_learning_curves, read_trainings
from perfsuite.system.untrusted import printable

LEARNED = ((2.5, 0.5), (1.25, 0.75))


def write_profile(
    path: Path, *epochs: tuple[float | None, float | None], workload: str = "lenet", **recipe: Any
) -> Path:
    made = msgspec.structs.replace(
        PROFILE,
        workload=workload,
        recipe=Recipe(**recipe).as_dict(),
        epochs=tuple(
            Epoch(loss=loss, accuracy=accuracy, duration_s=1.0, stages_s=STAGES)
            for loss, accuracy in epochs
        ),
    )
    path.write_bytes(msgspec.json.encode(made))
    return path


def labels(*paths: Path) -> list[str]:
    return [
        chart.label
        for section in draw_learning_curves(read_trainings(paths))
        for chart in section.charts
    ]


def test_trainings_that_differ_in_precision_alone_share_the_charts(tmp_path: Path) -> None:
    full = write_profile(tmp_path / "a.json", *LEARNED)
    mixed = write_profile(tmp_path / "b.json", (2.5, 0.5), (None, 1.0), precision="amp-bf16")

    assert labels(full, mixed) == [
        "Learning curves, lenet, single. fp32: 2.5 at epoch 1, 1.25 at epoch 2; "
        "amp-bf16: 2.5 at epoch 1",
        "Learning curves, lenet, single. fp32: 50.0 % at epoch 1, 75.0 % at epoch 2; "
        "amp-bf16: 50.0 % at epoch 1, 100.0 % at epoch 2",
    ]


def test_what_differs_otherwise_has_charts_of_its_own(tmp_path: Path) -> None:
    alone = write_profile(tmp_path / "a.json", *LEARNED)
    loaded = write_profile(tmp_path / "b.json", (2.0, None), num_workers=2)

    titles = [label.partition(".")[0] for label in labels(alone, loaded)]

    assert titles == ["Learning curves, lenet, single"] * 2 + [
        "Learning curves, lenet, single, num_workers=2"
    ]


def test_two_trainings_of_one_recipe_are_told_apart_by_their_files(tmp_path: Path) -> None:
    paths = [write_profile(tmp_path / name, (2.0, None)) for name in ("a.json", "b.json")]

    (label,) = labels(*paths)

    assert label.endswith("fp32, a.json: 2 at epoch 1; fp32, b.json: 2 at epoch 1")


def test_without_a_finite_loss_and_an_accuracy_there_is_no_section(tmp_path: Path) -> None:
    assert labels(write_profile(tmp_path / "a.json", (None, None))) == []
    assert labels() == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_workload_is_one_line_of_text(tmp_path: Path, name: str) -> None:
    (label,) = labels(write_profile(tmp_path / "a.json", (2.0, None), workload=name))

    assert label.startswith(f"Learning curves, {printable(name)}, single. ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty; name a file that 'perfsuite profile --json' wrote"),
        ("[", "is not JSON, or was cut off: "),
        ('{"benchmarks": []}', "Object contains unknown field `benchmarks`"),
    ],
)
def test_what_is_no_profile_is_named_with_its_reason(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)

    with pytest.raises(SettingError) as refused:
        read_trainings([path])

    assert str(refused.value).startswith(str(path))
    assert reason in str(refused.value)


def test_a_recipe_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "p.json", *LEARNED)
    document = json.loads(path.read_text())
    document["recipe"]["precision"] = "int4"
    path.write_text(json.dumps(document))

    with pytest.raises(SettingError) as refused:
        read_trainings([path])

    assert str(refused.value).startswith(f"{path} is no profile: precision is 'int4'; use one of ")


def test_the_verb_shows_the_curves_on_the_page_and_names_their_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.json", benchmark("t"))
    profile = write_profile(tmp_path / "fp32.json", *LEARNED)

    ended = CliRunner().invoke(
        app, ["report", str(run), "--profile", str(profile), "--html", str(tmp_path / "report")]
    )

    assert ended.exit_code == 0, ended.output
    page = (tmp_path / "report" / "index.html").read_text()
    assert '<h2 id="chart-1">Learning curves</h2>' in page
    assert f"{profile}, a profile of lenet (single, fp32) on cpu" in page
    assert (tmp_path / "report" / "chart-2.svg").exists()
