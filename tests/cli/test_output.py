"""What verbs have in common when they speak: lines of progress, and their JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfsuite.cli.output import pick, require_apart, say, write_json
from perfsuite.records.recipe import Recipe


def test_a_document_begins_with_its_schema_and_holds_null_for_what_is_infinite(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out" / "verb.json"

    write_json(path, interval=(0.5, float("inf")), refusal=None)

    assert list(json.loads(path.read_text())) == ["schema", "interval", "refusal"]
    assert json.loads(path.read_text()) == {"schema": 1, "interval": [0.5, None], "refusal": None}


def test_without_the_option_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    write_json(None, cells=[])

    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_to_itself_is_written_over(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)

    require_apart([loop.with_name("run.json")], [loop])
    write_json(loop, cells=[])

    assert json.loads(loop.read_text()) == {"schema": 1, "cells": []}


def test_attributes_stand_under_their_keys_in_the_json() -> None:
    picked = pick(Recipe(num_workers=2), "precision workers", workers="num_workers")

    assert picked == {"precision": "fp32", "workers": 2}


def test_progress_goes_beside_the_result_and_never_obeys_what_it_quotes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("\x1b[2Jcell\nnext")

    assert capsys.readouterr() == ("", "\\x1b[2Jcell\nnext\n")
