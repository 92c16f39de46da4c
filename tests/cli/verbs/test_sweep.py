"""The verb `sweep`: which numbers of workers it takes, what it shows and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call_verb

from perfsuite.cli.verbs.sweep import parse_counts
from perfsuite.experiments.interleave import Bench
from perfsuite.experiments.sweep import Times
from perfsuite.records.recipe import Recipe

GOOD, SLOW = (0.001, 0.0015, 0.0011), (0.002, 0.0031, 0.0022)
FOUND = {0: SLOW, 1: GOOD, 2: GOOD, 3: SLOW}, {0: GOOD, 1: SLOW, 2: SLOW, 3: SLOW}


class Verb:
    """The verb over a sweep that is made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.calls: list[tuple[str, Recipe, list[int], int]] = []

    def __call__(self, *arguments: str) -> int:
        def sweep_workers(
            bench: Bench, workload: str, recipe: Recipe, counts: list[int]
        ) -> tuple[Times, Times]:
            self.calls.append((workload, recipe, counts, bench.num_repetitions))
            return FOUND

        self._patch.setattr("perfsuite.experiments.sweep.sweep_workers", sweep_workers)
        return call_verb("sweep", *arguments)


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Verb:
    monkeypatch.chdir(tmp_path)
    return Verb(monkeypatch)


@pytest.mark.parametrize(
    ("text", "counts"), [("0..3", [0, 1, 2, 3]), ("4,0,2,2", [0, 2, 4]), ("2..2", [2]), ("5", [5])]
)
def test_numbers_of_workers_are_a_range_or_a_list(text: str, counts: list[int]) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", "3..1", "-1..2", "a", "0..257", "0,300", "1..2..3"])
def test_anything_else_is_one_line_and_2(
    verb: Verb, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = verb("toy-mlp", f"--num-workers={text}")

    assert ended == 2
    assert capsys.readouterr().err == (
        f"perfsuite: --num-workers is {text!r}; use a range such as 0..10 or a list such as "
        "0,1,2,4, of at most 256 workers\n"
    )


def test_the_loaders_options_reach_every_cell_with_workers(verb: Verb) -> None:
    verb(
        *("toy-mlp", "--num-workers", "0..4", "--persistent-workers", "--prefetch-factor", "3"),
        *("--non-blocking", "--precision", "bf16", "--repetitions", "2"),
    )

    expected = Recipe(
        num_workers=4,
        persistent_workers=True,
        prefetch_factor=3,
        non_blocking=True,
        precision="bf16",
    )
    assert verb.calls == [("toy-mlp", expected, [0, 1, 2, 3, 4], 2)]


def test_every_other_field_of_a_recipe_is_an_option_too(verb: Verb) -> None:
    verb("toy-mlp", "--num-workers", "0,2", "--checkpointing", "every-block", "--compile")

    ((_, recipe, counts, _),) = verb.calls
    assert recipe == Recipe(num_workers=2, checkpointing="every-block", compile=True)
    assert counts == [0, 2]


def test_without_options_0_to_10_workers_are_measured_five_times(verb: Verb) -> None:
    verb("toy-mlp")

    ((_, _, counts, num_repetitions),) = verb.calls
    assert (counts, num_repetitions) == (list(range(11)), 5)


def test_optimum_and_advice_stand_below_the_table(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = verb("toy-mlp", "--seed", "4")

    assert ended == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["0", "1", "2", "3"]
    assert lines[3].split()[-1] == "optimum"
    assert lines[5].split()[-1] == "hurts"
    assert lines[6:] == [
        "optimum: 1 (within noise of the best, like 2); from 3 on, more workers hurt",
        "advice: use num_workers=1: a step takes 51% less time than with 0 (between 48% and 53%); "
        "from 3 on, more workers hurt",
        "5 repetitions, seed 4; picture in results/sweep.svg",
    ]


def test_the_json_has_the_contracts_shape(verb: Verb, tmp_path: Path) -> None:
    verb("toy-mlp", "--json", "s.json", "--seed", "4")

    document = json.loads((tmp_path / "s.json").read_text())
    assert (document["schema"], document["workload"]) == (1, "toy-mlp")
    assert [one["num_workers"] for one in document["times"]] == [0, 1, 2, 3]
    first = document["times"][1]
    assert first["interval_s"][0] < first["iteration_s"] < first["interval_s"][1]
    assert first["repetitions_s"] == [0.001, 0.0015, 0.0011]
    assert (document["optimum"], document["hurts_from"]) == (1, 3)
    assert document["within_noise"] == [1, 2]
    assert (document["loading"]["optimum"], document["loading"]["hurts_from"]) == (0, 1)
    assert "num_workers" not in document["recipe"]


def test_the_picture_is_an_svg_under_results(verb: Verb, tmp_path: Path) -> None:
    verb("toy-mlp")

    picture = (tmp_path / "results" / "sweep.svg").read_text()
    assert "<svg" in picture
    assert "toy-mlp: loader workers" in picture
