"""The verb `verify` as it prints; what it proves is tested beside `worker.equivalence`."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from typer.testing import CliRunner

from perfsuite.cli import app
from perfsuite.experiments.results import not_exercised
from perfsuite.records.recipe import Recipe

verb = importlib.import_module("perfsuite.cli.verbs.verify")


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    one = not_exercised("toy-mlp", Recipe(), "no GPU")
    monkeypatch.setattr(verb, "open_session", lambda *_: None)
    monkeypatch.setattr("perfsuite.experiments.verify.verify_one", lambda *_: one)
    monkeypatch.setattr(verb, "_verify_every", lambda *_: [one, one])


@pytest.mark.parametrize(
    ("arguments", "last"),
    [([], "T1 not exercised (single, fp32): no GPU"), (["--all"], "2 not exercised")],
)
def test_many_recipes_are_counted_and_one_is_explained(arguments: list[str], last: str) -> None:
    ended: Any = CliRunner().invoke(app.app, ["verify", "toy-mlp", *arguments])

    assert ended.exit_code == 22
    assert ended.stdout.splitlines()[-1] == last
