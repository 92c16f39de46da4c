"""The recipe's options: one for each field, made once for all verbs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from perfsuite.cli.options import WorkloadName, command_call, open_session, takes_recipe
from perfsuite.errors import SettingError
from perfsuite.records.recipe import Recipe


@pytest.fixture
def verb() -> tuple[typer.Typer, list[tuple[str, Recipe, bool]]]:
    """A verb that notes what it is called with."""
    app, calls = typer.Typer(), list[tuple[str, Recipe, bool]]()

    @app.command()
    @takes_recipe
    def note(workload: WorkloadName, *, recipe: Recipe, loudly: bool = False) -> None:
        """Note it."""
        calls.append((workload, recipe, loudly))

    return app, calls


def test_without_options_the_recipe_is_the_default_one(verb) -> None:
    app, calls = verb

    CliRunner().invoke(app, ["toy-mlp"])

    assert calls == [("toy-mlp", Recipe(), False)]


def test_every_field_of_a_recipe_is_an_option(verb) -> None:
    app, calls = verb
    recipe = Recipe(
        loader="cached",
        num_workers=2,
        persistent_workers=True,
        pin_memory=True,
        prefetch_factor=4,
        non_blocking=True,
        parallel="ddp:2",
        precision="amp-bf16",
        checkpointing="segments:2",
        micro_batch_size=8,
        grad_accumulation_steps=3,
        clip_grad_norm=0.5,
        compile=True,
        bucket_cap_mb=1.5,
        static_graph=True,
        gradient_as_bucket_view=True,
        find_unused_parameters=True,
        comm_hook="fp16",
    )
    default = Recipe().as_dict()
    assert all(value != default[name] for name, value in recipe.as_dict().items())
    arguments = []
    for name, value in recipe.as_dict().items():
        option = f"--{name.replace('_', '-')}"
        arguments += [option] if value is True else [option, str(value)]

    CliRunner().invoke(app, ["toy-mlp", *arguments, "--loudly"])

    assert calls == [("toy-mlp", recipe, True)]


def test_a_recipe_that_is_none_never_reaches_the_verb(verb) -> None:
    app, calls = verb

    ended = CliRunner().invoke(app, ["toy-mlp", "--precision", "fp8"])

    assert calls == []
    assert str(ended.exception).startswith("precision is 'fp8'; use one of fp64, fp32, ")


def test_help_names_every_field(verb) -> None:
    app, _ = verb

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout

    assert all(f"--{field.name.replace('_', '-')}" in shown for field in dataclasses.fields(Recipe))
    assert "--no-" not in shown.replace("--no-loudly", "")


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError) as refused:
        open_session("tpu", 0)

    assert str(refused.value) == "--device is 'tpu'; use one of auto, cpu, cuda"


@pytest.mark.parametrize(
    ("file", "text", "shared"),
    [
        (None, "", "perf_share="),
        ("pytest.ini", "[pytest]\nperf_share = data 'a b/c'\n", "perf_share=data 'a b/c'"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nperf_share=['data']\n", "perf_share=data"),
        # Those of a folder above are not where the command is called.
        ("../pytest.ini", "[pytest]\nperf_share = data called/own\n", "perf_share=own"),
    ],
    ids=["none", "ini file", "toml file", "of a folder above"],
)
def test_of_a_configuration_beside_a_command_its_shared_files_alone_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, text: str, shared: str
) -> None:
    (tmp_path / "called").mkdir()
    monkeypatch.chdir(tmp_path / "called")
    if file is not None:
        Path(file).write_text(f"{text}addopts = '--of-a-plugin-that-is-not-here'\n")

    call = command_call(["python", "train.py"], {})

    assert [word for word in call.arguments if "=" in word and "perf_" in word] == [shared]
    assert not [word for word in call.arguments if "plugin-that" in word]


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("pytest.ini", "[broken", r"pytest\.ini:1: "),
        ("pytest.ini", "[pytest]\nperf_share = 'data\n", "No closing quotation"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nperf_share = [3]\n", "int"),
    ],
)
def test_a_configuration_beside_a_command_that_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_text(text)

    with pytest.raises(SettingError, match=f"^perf_share of pytest's configuration: .*{why}"):
        command_call(["python", "train.py"], {})
