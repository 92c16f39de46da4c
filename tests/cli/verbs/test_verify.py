"""The verb `verify` as it prints; what it proves is tested beside `worker.equivalence`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from perfsuite.cli import app
from perfsuite.errors import (
    DataLoadError,
    PerfsuiteError,
    RankFailureError,
    RecipeError,
    SettingError,
    WorkloadError,
)
from perfsuite.experiments.results import not_exercised
from perfsuite.records.recipe import Recipe

verb = importlib.import_module("perfsuite.cli.verbs.verify")
CRASH = RankFailureError("rank 1 of 2 raised TypeError: no autocast", rank=1)


@pytest.fixture
def run_verify(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """(outcomes, *arguments) -> how the verb ended, where these came of the recipes."""

    def run(outcomes: list[Any], *arguments: str) -> Any:
        def verify(*args: Any, **kwargs: Any) -> Any:
            (outcome,) = outcomes
            if isinstance(outcome, PerfsuiteError):
                raise outcome
            return outcome

        session = SimpleNamespace(verify=verify, verify_each=lambda *args, **kwargs: iter(outcomes))
        recipes = [Recipe(parallel=f"ddp:{size}") for size in range(2, 2 + len(outcomes))]
        monkeypatch.setattr(verb, "open_session", lambda *args: session)
        monkeypatch.setattr("perfsuite.experiments.verify.every_recipe", lambda: recipes)
        return CliRunner().invoke(app.app, ["verify", "toy-mlp", *arguments])

    return run


@pytest.mark.parametrize(
    ("arguments", "last"),
    [([], "T1 not exercised (single, fp32): no GPU"), (["--all"], "1 not exercised")],
)
def test_many_recipes_are_counted_and_one_is_explained(
    run_verify: Callable[..., Any], arguments: list[str], last: str
) -> None:
    ended = run_verify([not_exercised("toy-mlp", Recipe(), "no GPU")], *arguments)

    assert ended.exit_code == 22
    assert ended.stdout.splitlines()[-1] == last
    told = ["1 of 1 recipes: single, not exercised"] if arguments else []
    assert ended.stderr.splitlines() == told


@pytest.mark.parametrize("error", [RecipeError("no blocks"), WorkloadError("no dataset")])
def test_a_recipe_of_the_table_that_cannot_be_is_not_exercised(
    run_verify: Callable[..., Any], error: PerfsuiteError
) -> None:
    ended = run_verify([error], "--all")

    assert ended.exit_code == 22
    assert f"T0 not exercised (ddp:2, fp32): {error}" in ended.stdout.splitlines()


@pytest.mark.parametrize("error", [CRASH, DataLoadError("its dataset raised KeyError: 3")])
def test_a_training_of_the_table_that_fails_is_told_and_the_others_go_on(
    run_verify: Callable[..., Any], tmp_path: Path, error: PerfsuiteError
) -> None:
    missing = not_exercised("toy-mlp", Recipe(), "no GPU")
    path = tmp_path / "verify.json"

    ended = run_verify([error, missing], "--all", "--json", str(path))

    assert ended.exit_code == 1
    assert ended.stdout.splitlines()[-3:] == [
        f"T0 not exercised (ddp:2, fp32): failed: {error}",
        "T1 not exercised (single, fp32): no GPU",
        "1 not exercised, 1 failed",
    ]
    assert [row["reason"] for row in json.loads(path.read_text())["rows"]] == [
        f"failed: {error}",
        "no GPU",
    ]


def test_a_setting_that_no_recipe_could_have_ends_the_table(
    run_verify: Callable[..., Any],
) -> None:
    ended = run_verify([SettingError("torch 2.1 is too old")], "--all")

    assert str(ended.exception) == "torch 2.1 is too old"


def test_one_recipe_whose_training_fails_ends_in_its_message_and_exit_code_1(
    run_verify: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = run_verify([CRASH]).exception

    monkeypatch.setattr(app, "app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 1
    assert capsys.readouterr().err == "perfsuite: rank 1 of 2 raised TypeError: no autocast\n"
