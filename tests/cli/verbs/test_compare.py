"""The verb `compare`: what it asks for, shows, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call_verb
from made_up_cells import make_record

from perfsuite.cli.verbs import compare as compare_module
from perfsuite.experiments.compare import Comparison, ComparisonRequest
from perfsuite.experiments.interleave import Bench
from perfsuite.records.equivalence import EquivalenceReport, EquivalenceRow
from perfsuite.records.recipe import Recipe

FOUND = Comparison(
    word="slower",
    ratio=1.25,
    interval=(1.2, 1.3),
    raw=((0.001, 0.00125), (0.001, 0.00125)),
    num_samples={"a": 32, "b": 32},
    records={"a": make_record(), "b": make_record(Recipe(precision="amp-bf16"))},
    wall_s=12.0,
)
PROVEN = EquivalenceReport(
    workload="toy-mlp",
    recipe={},
    rows=(
        EquivalenceRow(
            parallel="single",
            precision="fp32",
            checkpointing="none",
            world_size=1,
            check="T1",
            status="equivalent",
            error=0.0,
            limit=1e-7,
            power="7/7",
            reason="",
        ),
    ),
    inapplicable={},
)

OTHER = "precision=amp-bf16"


class Verb:
    """The verb over a comparison that is made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.requests: list[ComparisonRequest] = []
        self.seeds: list[int] = []

    def __call__(self, *arguments: str, found: Comparison = FOUND) -> int:
        def compare(bench: Bench, request: ComparisonRequest) -> Comparison:
            self.requests.append(request)
            self.seeds.append(bench.seed)
            return found

        self._patch.setattr(compare_module, "compare", compare)
        self._patch.setattr(compare_module, "check_numerics", lambda session, cell: PROVEN)
        return call_verb("compare", *arguments)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    monkeypatch.chdir(tmp_path)
    return Verb(monkeypatch)


def test_both_recipes_and_the_budget_reach_the_judge(verb: Verb) -> None:
    ended = verb(
        *("toy-mlp", "--a", "num_workers=1", "--a", "precision=bf16", "--b", "num_workers=2"),
        *("--tolerance", "1%", "--limit", "0.04", "--max-pairs", "6", "--max-minutes", "2"),
        *("--seed", "9"),
    )

    (request,) = verb.requests
    assert ended == 0
    assert request.a.recipe == Recipe(num_workers=1, precision="bf16")
    assert request.b.recipe == Recipe(num_workers=2)
    assert (request.tolerance, request.limit, verb.seeds) == (0.01, 0.04, [9])
    assert (request.budget.max_pairs, request.budget.max_s) == (6, 120.0)


def test_the_table_ends_in_one_plain_sentence(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    verb("toy-mlp", "--b", "precision=amp-bf16", "--seed", "3")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("a:", "the", "default", "recipe", "b:", "precision=amp-bf16", "b", "against", "a")
    ]
    assert "time per step  32.0 ms  40.0 ms  +25.0 %" in [
        "  ".join(filter(None, map(str.strip, line.split("  ")))) for line in lines
    ]
    assert lines[-2:] == [
        "b is slower than a: +25.0 % time per sample in pairs, between +20.0 % and +30.0 %",
        "2 pairs in 12 s, seed 3",
    ]


def test_the_json_holds_word_interval_raw_pairs_and_both_sides(verb: Verb, tmp_path: Path) -> None:
    verb("toy-mlp", "--b", "precision=amp-bf16", "--json", "out/c.json", "--seed", "3")

    document = json.loads((tmp_path / "out" / "c.json").read_text())
    assert document["schema"] == 1
    assert document["workload"] == "toy-mlp"
    assert document["a"] == Recipe().as_dict()
    assert document["b"]["precision"] == "amp-bf16"
    assert (document["word"], document["ratio"], document["pairs"]) == ("slower", 1.25, 2)
    assert document["interval"] == [1.2, 1.3]
    assert document["raw"] == [[0.001, 0.00125], [0.001, 0.00125]]
    assert document["step_times_s"] == {"a": 0.032, "b": 0.04}
    assert document["memory"]["b"]["peak_bytes"] == 1024
    assert document["counts"]["a"]["flops"] is None
    assert document["numerics"]["a"] == {
        "status": "equivalent",
        "check": "T1",
        "error": 0.0,
        "limit": 1e-7,
        "power": "7/7",
    }


def test_an_unknown_interval_is_null(verb: Verb, tmp_path: Path) -> None:
    unknown = Comparison(
        word="undecided",
        ratio=1.0,
        interval=(0.0, float("inf")),
        raw=((0.001, 0.001),),
        num_samples={"a": 32, "b": 32},
        records=FOUND.records,
        wall_s=1.0,
    )

    ended = verb("toy-mlp", "--b", OTHER, "--json", "c.json", found=unknown)

    assert ended == 0
    assert json.loads((tmp_path / "c.json").read_text())["interval"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--a", OTHER],
            "a and b are the same recipe; change one: --b precision=amp-bf16",
        ),
        (["--a", "precision"], "--a is 'precision'; use FIELD=VALUE, such as precision=amp-bf16"),
        (["--b", "num_workers=-1"], "num_workers is -1; use a whole number from 0"),
        (["--tolerance", "x"], "--tolerance is 'x'; use a ratio such as 2%"),
        (["--tolerance", "100%"], "--tolerance is 100%; use less than 100%"),
        (
            ["--limit", "1%", "--tolerance", "2%"],
            "--tolerance is 2%, above the limit of 1%; use a smaller one, or a larger --limit",
        ),
        (["--device", "tpu"], "--device is 'tpu'; use one of auto, cpu, cuda"),
    ],
)
def test_a_mistake_is_one_line_and_2(
    verb: Verb, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = verb("toy-mlp", "--b", OTHER, *arguments)

    assert ended == 2
    assert capsys.readouterr().err == f"perfsuite: {message}\n"
    assert verb.requests == []
