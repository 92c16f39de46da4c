"""The verb `claims`: what it shows, writes and ends in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import call_verb

from perfsuite.cli import app
from perfsuite.cli.verbs import claims as claims_module
from perfsuite.errors import WorkloadError
from perfsuite.experiments.claims.claim import Claim, ClaimFinding
from perfsuite.experiments.interleave import Bench

HOLDS = ClaimFinding(status="holds", figures={"ratio": 0.5}, reason="counted")


def count(bench: Bench) -> ClaimFinding:
    return HOLDS


def make_claim(name: str = "C8") -> Claim:
    return Claim(id=name, text="is so", quoted="0.5 exactly", source="S1", experiment=count)


def broken(bench: Bench) -> ClaimFinding:
    raise WorkloadError("no data")


class Verb:
    """The verb over claims that are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, *arguments: str, claims: list[Claim] | None = None) -> int:
        chosen = [make_claim()] if claims is None else claims
        self._patch.setattr(claims_module, "choose_claims", lambda only: chosen)
        return call_verb("claims", *arguments)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    monkeypatch.chdir(tmp_path)
    return Verb(monkeypatch)


def test_this_machines_figures_stand_beside_the_quoted_ones(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = verb("--seed", "6")

    assert ended == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        *("C8 holds: is so", "    here: counted", "    quoted (S1): 0.5 exactly"),
        "seed 6",
    ]


def test_the_json_has_id_status_figures_and_reason(verb: Verb, tmp_path: Path) -> None:
    verb("--json", "claims.json")

    document = json.loads((tmp_path / "claims.json").read_text())
    assert document["schema"] == 1
    assert document["claims"] == [
        {
            "id": "C8",
            "status": "holds",
            "figures": {"ratio": 0.5},
            "reason": "counted",
            "text": "is so",
            "quoted": "0.5 exactly",
            "source": "S1",
            "broken": False,
        }
    ]


def test_an_experiment_that_broke_ends_in_1(verb: Verb) -> None:
    claim = Claim(id="C1", text="is so", quoted="-", source="S0", experiment=broken)

    assert verb(claims=[claim, make_claim()]) == 1


def test_an_unknown_claim_ends_in_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["perfsuite", "claims", "--only", "C15"])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("perfsuite: --only names 'C15'; use one of C1, ")
