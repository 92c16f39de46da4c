"""How cells are judged where no marker says it, and which verdicts change no exit code."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from perfsuite.errors import SettingError
from perfsuite.gate.arms.arm import Suite
from perfsuite.gate.arms.command import Command
from perfsuite.gate.arms.launched import collected
from perfsuite.gate.baselines.accepted import Accepted, Entry, Loosening, Quarantine
from perfsuite.gate.common_cells import Leniency, _is_named, choose_cells
from perfsuite.gate.judge.trial import Budget
from perfsuite.gate.request import GateRequest
from perfsuite.plugin import fixtures
from perfsuite.records.verdict import CellVerdict

BUDGET = Budget(max_pairs=4, max_s=1.0)


def suite_of(root: Path, cells: dict[str, dict[str, Any]]) -> Suite:
    return Suite(cells=cells, root=root, inifile=None, pythonpath=(), python_files=())


@pytest.mark.parametrize(
    ("fixture", "floor_s"), [(None, 0.0), ("train_benchmark", 50e-6), ("loader_benchmark", 50e-6)]
)
def test_cells_of_our_fixtures_have_a_floor(
    fixture: str | None, floor_s: float, tmp_path: Path
) -> None:
    request = GateRequest(command=Command(folder=tmp_path), budget=BUDGET, seed=1)
    suite = suite_of(tmp_path, {"a": {"fixture": fixture}})

    chosen = choose_cells(request, suite, suite, Accepted())

    assert chosen.policies["a"].floor_s == floor_s


def test_a_change_that_tightens_both_bounds_in_two_places_is_held_to_them(tmp_path: Path) -> None:
    request = GateRequest(
        command=Command(folder=tmp_path),
        budget=BUDGET,
        seed=1,
        tolerance=0.003,
        limit=0.01,
        fixed=frozenset({"limit"}),  # typed; head's ini file has the tolerance
    )
    suite = suite_of(tmp_path, {"a": {}})

    chosen = choose_cells(request, suite, suite, Accepted())

    assert (chosen.policies["a"].tolerance, chosen.policies["a"].limit) == (0.003, 0.01)


@pytest.mark.parametrize(
    ("limit", "marked", "bounds"),
    [
        (0.05, {}, (0.02, 0.05)),
        (0.01, {}, (0.004, 0.01)),
        (3.0, {}, (0.9, 3.0)),
        (0.05, {"limit": "20%"}, (0.08, 0.2)),
        (0.05, {"limit": "20%", "tolerance": "1%"}, (0.01, 0.2)),
    ],
)
def test_a_tolerance_that_nobody_gives_follows_from_the_limit(
    tmp_path: Path, limit: float, marked: dict[str, str], bounds: tuple[float, float]
) -> None:
    request = GateRequest(command=Command(folder=tmp_path), budget=BUDGET, seed=1, limit=limit)
    suite = suite_of(tmp_path, {"a": marked})

    chosen = choose_cells(request, suite, suite, Accepted())

    assert (chosen.policies["a"].tolerance, chosen.policies["a"].limit) == pytest.approx(bounds)
    assert chosen.loosened is None


def test_an_entry_that_loosens_a_limit_loosens_the_tolerance_that_follows_from_it(
    tmp_path: Path,
) -> None:
    request = GateRequest(
        command=Command(folder=tmp_path), budget=BUDGET, seed=1, limit=0.2, fixed=frozenset()
    )
    suite = suite_of(tmp_path, {"a": {}})
    entry = Loosening(cell="a", limit="10%", **ABOUT)

    chosen = choose_cells(request, suite, suite, Accepted(entries=(entry,)))

    policy = chosen.policies["a"]
    assert (policy.tolerance, policy.limit) == pytest.approx((0.04, 0.1))


@pytest.mark.parametrize(
    ("typed", "bounds"),
    [
        ((), (0.1, 0.15)),
        (("tolerance",), (0.01, 0.15)),
        (("tolerance", "limit"), (0.01, 0.03)),
    ],
)
def test_the_command_line_goes_before_a_marker_and_a_marker_before_the_rest(
    tmp_path: Path, typed: tuple[str, ...], bounds: tuple[float, float]
) -> None:
    request = GateRequest(
        command=Command(folder=tmp_path),
        budget=BUDGET,
        seed=1,
        tolerance=0.01,
        limit=0.03,
        typed=frozenset(typed),
    )
    marked = {"a": {"tolerance": "10%", "limit": "15%"}}
    suite = suite_of(tmp_path, marked)

    chosen = choose_cells(request, suite, suite, Accepted())

    assert (chosen.policies["a"].tolerance, chosen.policies["a"].limit) == bounds


def test_a_limit_of_the_command_line_below_the_tolerance_of_heads_marker_is_refused(
    tmp_path: Path,
) -> None:
    request = GateRequest(
        command=Command(folder=tmp_path),
        budget=BUDGET,
        seed=1,
        limit=0.03,
        typed=frozenset({"limit"}),
    )
    wide, narrow = (suite_of(tmp_path, {"a": {"tolerance": one}}) for one in ("10%", "2%"))

    with pytest.raises(SettingError, match=r"the limit is 3.0 % \(command line\), below"):
        choose_cells(request, wide, narrow, Accepted())
    # What the base has no change can mend.
    chosen = choose_cells(request, narrow, wide, Accepted())
    assert (chosen.policies["a"].tolerance, chosen.policies["a"].limit) == (0.02, 0.03)


def test_an_arm_knows_every_fixture_that_measures() -> None:
    assert set(collected._FIXTURES) == set(fixtures._MEASURING)


LOOSER = (
    "head's perf_policy of advisory is looser than enforce, where --perf-policy=advisory would "
    "hold for both sides (every cell); the stricter holds; if that is meant, say so with "
    "'perfsuite baseline accept'"
)
ABOUT: dict[str, Any] = {"reason": "at first", "expires": date.max}
ADVICE = Loosening(cell="*", policy="advisory", **ABOUT)


@pytest.mark.parametrize(
    ("is_advisory", "fixed", "settings", "entries", "holds", "loosened"),
    [
        (True, {"policy"}, {}, (), True, None),
        (True, set(), {"perf_policy": "advisory"}, (), True, None),
        (True, set(), {"perf_policy": "enforce"}, (), False, LOOSER),
        (True, set(), {"perf_policy": "advisory?"}, (), False, LOOSER),
        (True, set(), {}, (Loosening(cell="*", limit="8%", **ABOUT),), False, LOOSER),
        (True, set(), {}, (ADVICE,), True, None),
        (False, set(), {"perf_policy": "advisory"}, (ADVICE,), False, None),
    ],
)
def test_an_advisory_policy_holds_on_the_command_lines_the_bases_or_a_reviewers_word(
    tmp_path: Path,
    is_advisory: bool,
    fixed: set[str],
    settings: dict[str, str],
    entries: tuple[Entry, ...],
    holds: bool,
    loosened: str | None,
) -> None:
    request = GateRequest(
        command=Command(folder=tmp_path),
        budget=BUDGET,
        seed=1,
        is_advisory=is_advisory,
        fixed=frozenset(fixed),
    )
    suite = Suite(
        cells={"a": {}},
        root=tmp_path,
        inifile=None,
        pythonpath=(),
        python_files=(),
        settings=settings,
    )

    chosen = choose_cells(request, suite, suite, Accepted(entries=entries))

    assert (chosen.is_advisory, chosen.loosened) == (holds, loosened)
    assert chosen.used["a"] == [one for one in entries if one is ADVICE and is_advisory]
    assert Leniency.of(request).is_advisory == bool(fixed)


def verdict(word: Any, **changes: Any) -> CellVerdict:
    return CellVerdict(**({"name": "a", "word": word, "by": "pairs"} | changes))


MEASURED = ((1.0, 1.1),)
QUARANTINED = Accepted(entries=(Quarantine(cell="a", **ABOUT),))


@pytest.mark.parametrize(
    ("given", "quarantined", "advisory"),
    [
        *((verdict(word), True, True) for word in ("PASS", "FAIL", "IMPROVED", "INCONCLUSIVE")),
        *((verdict(word), True, True) for word in ("NEW", "SKIPPED")),
        # A cell that no pair measured, as where its launch was killed.
        *((verdict(word), False, True) for word in ("INVALID", "NO-BASELINE", "VANISHED")),
        *((verdict(word, raw=MEASURED), True, True) for word in ("INVALID", "NO-BASELINE")),
        (verdict("ERROR"), False, False),
        (verdict("ERROR", raw=MEASURED), False, False),
    ],
    ids=lambda one: one.word + " measured" * bool(one.raw) if isinstance(one, CellVerdict) else "",
)
def test_a_quarantine_is_for_what_was_measured_and_no_policy_for_a_failed_test(
    given: CellVerdict, quarantined: bool, advisory: bool
) -> None:
    marked = Leniency(QUARANTINED).mark(given)
    advised = Leniency(is_advisory=True).mark(given)
    both = Leniency(QUARANTINED, is_advisory=True).mark(given)

    assert marked.policy == ("quarantined" if quarantined else None)
    assert advised.policy == ("advisory" if advisory else None)
    assert both.policy == (marked.policy or advised.policy)
    in_words = (f"a is quarantined until {date.max}: at first",)
    assert marked.accepted == (in_words if quarantined else ())
    assert Leniency(QUARANTINED).mark(marked) == marked
    other = verdict(given.word, name="b")
    assert Leniency(QUARANTINED).mark(other) == other


@pytest.mark.parametrize("code", [*range(14), 130])
def test_advice_ends_in_0_in_place_of_10_to_13(code: int) -> None:
    assert Leniency().ends(code) == code
    assert Leniency(is_advisory=True).ends(code) == (0 if 10 <= code <= 13 else code)


@pytest.mark.parametrize(
    ("name", "paths", "is_named"),
    [
        ("benchmarks/test_a.py::test_b", ["benchmarks/test_a.py::test_c", "benchmarks"], True),
        ("test_a.py::test_b[1]", ["test_a.py::test_b"], True),
        ("test_a.py::test_bc", ["test_a.py::test_b"], False),
        ("test_a.py::test_b", [], True),
    ],
)
def test_a_path_names_what_is_in_it(name: str, paths: list[str], is_named: bool) -> None:
    assert _is_named(name, paths) == is_named
