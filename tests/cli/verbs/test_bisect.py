"""The verb `bisect`: what it asks for, what it says, writes and ends in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call_verb

from perfsuite.cli.verbs import bisect as bisect_module
from perfsuite.gate.bisect import BisectResult, BisectStep, Mark
from perfsuite.gate.request import GateRequest
from perfsuite.records.verdict import CellVerdict, Explanation
from perfsuite.system.timing_lock import TimingLock

CELL = "benchmarks/test_steps.py::test_price"
MOVED = Explanation(moved_stage="load", stages={"load": (0.001, 0.002)}, counts={}, operators=())


def step(
    letter: str,
    word: str,
    mark: Mark,
    *,
    ratio: float | None = None,
    explanation: Explanation | None = None,
) -> BisectStep:
    interval = None if ratio is None else (ratio - 0.01, ratio + 0.01)
    verdict = CellVerdict(
        name=CELL,
        word=word,
        by="pairs",
        ratio=ratio,
        interval=interval,
        num_pairs=4,
        explanation=explanation,
    )
    return BisectStep(commit=letter * 40, subject=f"change {letter}", mark=mark, verdict=verdict)


BOUNDS = (0.07, 0.2)
GOOD = step("a", "PASS", "good", ratio=1.0)
BAD = step("f", "FAIL", "bad", ratio=1.3)
FIRST = step("c", "FAIL", "bad", ratio=1.3, explanation=MOVED)
SKIPPED = step("d", "INCONCLUSIVE", "skip")
FOUND = BisectResult(
    cell=CELL, bounds=BOUNDS, ends=(BAD, GOOD), steps=(SKIPPED, FIRST), first_bad=FIRST
)

Call = Callable[..., int]


class Bisect:
    """The verb over a search that is made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.requests: list[GateRequest] = []
        self.asked: dict[str, Any] = {}

    def __call__(self, *arguments: str, found: BisectResult = FOUND) -> int:
        """Return what the command line ends in."""

        def bisect(
            request: GateRequest, *, say: Any, machine: TimingLock, **asked: Any
        ) -> BisectResult:
            self.requests.append(request)
            self.asked = asked
            assert isinstance(machine, TimingLock)
            say("searching")
            return found

        self._patch.setattr(bisect_module, "bisect", bisect)
        return call_verb("bisect", *arguments)


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bisect:
    monkeypatch.chdir(tmp_path)
    return Bisect(monkeypatch)


def test_without_options_the_bounds_follow_the_bad_end(bisect: Bisect, tmp_path: Path) -> None:
    assert bisect("--good", "v1", CELL) == 0

    (request,) = bisect.requests
    assert (request.command.folder, request.command.arguments) == (tmp_path, (CELL,))
    assert bisect.asked == {"good": "v1", "bad": "HEAD", "bounds": None}
    assert (request.budget.max_pairs, request.budget.max_s) == (40, 1800.0)
    assert request.priors == {}


def test_every_option_reaches_the_search(bisect: Bisect) -> None:
    bisect(
        *("--good", "v1", "--bad", "v2", "--tolerance", "10%", "--limit", "0.2"),
        *("--max-pairs", "8", "--max-minutes", "0.5", "--seed", "5", CELL),
    )

    (request,) = bisect.requests
    assert (bisect.asked["bad"], bisect.asked["bounds"]) == ("v2", (0.1, 0.2))
    assert (request.budget.max_pairs, request.budget.max_s, request.seed) == (8, 30.0, 5)


@pytest.mark.parametrize(
    ("option", "bounds"), [("--tolerance=1%", (0.01, 0.05)), ("--limit=9%", (0.036, 0.09))]
)
def test_one_bound_without_the_other_is_beside_the_gates_limit_or_its_tolerance(
    bisect: Bisect, option: str, bounds: tuple[float, float]
) -> None:
    bisect("--good", "v1", option, CELL)

    assert bisect.asked["bounds"] == pytest.approx(bounds)


def test_the_first_bad_commit_is_named_with_its_figures_and_what_moved(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect("--good", "v1", "--seed", "5", CELL) == 0

    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "ccccccc is the first bad commit, 'change c': slower by 30.0 % than the good one "
        "(+29.0 % to +31.0 %, 4 pairs); moved most: load 1.00 ms -> 2.00 ms (+100.0 %)",
        "seed 5",
    ]
    assert err == "searching\n"


def test_a_commit_that_only_counts_more_is_shown_by_what_it_counts(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = CellVerdict(
        name=CELL, word="FAIL", by="counts", ratio=1.0, interval=(0.99, 1.01), reason="ops 3 -> 4"
    )
    first = BisectStep(commit="c" * 40, subject="change c", mark="bad", verdict=verdict)

    bisect(
        "--good",
        "v1",
        CELL,
        found=BisectResult(cell=CELL, bounds=BOUNDS, ends=(BAD, GOOD), first_bad=first),
    )

    assert capsys.readouterr().out.splitlines()[0] == (
        "ccccccc is the first bad commit, 'change c': ops 3 -> 4"
    )


def test_where_too_many_are_skipped_each_possible_commit_is_named(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    found = BisectResult(
        cell=CELL,
        bounds=BOUNDS,
        ends=(BAD, GOOD),
        steps=(SKIPPED,),
        possible=(("d" * 40, "change d"), ("e" * 40, "change e")),
    )

    assert bisect("--good", "v1", CELL, found=found) == 11

    assert capsys.readouterr().out.splitlines()[:3] == [
        "the first bad commit is one of 2 that could not all be judged:",
        "  ddddddd change d",
        "  eeeeeee change e",
    ]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ((step("f", "PASS", "good", ratio=1.0),), 2),
        ((step("f", "IMPROVED", "good", ratio=0.9),), 2),
        ((step("f", "INCONCLUSIVE", "skip", ratio=1.0),), 11),
        ((step("f", "INVALID", "skip"),), 12),
        ((step("f", "ERROR", "skip"),), 1),
        ((step("f", "SKIPPED", "skip"),), 13),
        ((BAD, step("a", "FAIL", "bad", ratio=1.1)), 12),
        ((BAD, step("a", "INCONCLUSIVE", "skip")), 11),
    ],
)
def test_where_there_is_nothing_to_search_the_reason_is_shown(
    bisect: Bisect, capsys: pytest.CaptureFixture[str], ends: tuple[BisectStep, ...], code: int
) -> None:
    found = BisectResult(cell=CELL, bounds=BOUNDS, ends=ends, refusal="there is nothing to find")

    assert bisect("--good", "v1", CELL, found=found) == code
    assert capsys.readouterr().out.splitlines()[0] == "there is nothing to find"


def test_the_json_holds_every_step(bisect: Bisect, tmp_path: Path) -> None:
    unknown = step("d", "INCONCLUSIVE", "skip", ratio=math.inf)
    found = BisectResult(
        cell=CELL, bounds=BOUNDS, ends=(BAD, GOOD), steps=(unknown, FIRST), first_bad=FIRST
    )

    bisect("--good", "v1", "--seed", "5", "--json", "bisect.json", CELL, found=found)

    document = json.loads((tmp_path / "bisect.json").read_text())
    assert (document["schema"], document["cell"], document["exit_code"]) == (1, CELL, 0)
    assert (document["seed"], document["tolerance"], document["limit"]) == (5, *BOUNDS)
    assert document["first_bad"] == document["steps"][1]
    assert (
        document["first_bad"].items()
        >= {
            "commit": "c" * 40,
            "subject": "change c",
            "mark": "bad",
            "word": "FAIL",
            "ratio": 1.3,
            "interval": [pytest.approx(1.29), pytest.approx(1.31)],
            "pairs": 4,
            "reason": None,
            "explanation": {
                "moved_stage": "load",
                "stages": {"load": [0.001, 0.002]},
                "counts": {},
                "operators": [],
            },
        }.items()
    )
    assert document["steps"][0]["interval"] is None
    assert [end["commit"][0] for end in document["ends"]] == ["f", "a"]


def test_a_limit_below_the_tolerance_is_refused(
    bisect: Bisect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bisect("--good", "v1", "--tolerance", "6%", CELL) == 2
    assert capsys.readouterr().err == (
        "perfsuite: --tolerance is 6%, above the limit of 5%; use a smaller one, or a larger "
        "--limit\n"
    )
