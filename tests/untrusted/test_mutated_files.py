"""Files that may be anybody's, broken at random: no crash, no verdict, nothing that is obeyed.

What a sound file is, is written down here a second time, from the contract and not from the code.
"""

from __future__ import annotations

import csv
import datetime
import io
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from broken_files import as_json, damaged, mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_cells import make_record

from perfsuite.errors import PerfsuiteError
from perfsuite.gate.baselines.accepted import in_words, read_accepted
from perfsuite.gate.baselines.screen import MIN_SESSIONS
from perfsuite.gate.baselines.select import Trunk, choose_runs
from perfsuite.gate.baselines.stored_verdict import History
from perfsuite.gate.judge.explain import explain_stored
from perfsuite.gate.judge.trial import CellPolicy
from perfsuite.gate.noise import read_priors
from perfsuite.records.cell import CellLine, Counts, Operator, encode_line
from perfsuite.records.recipe import Recipe
from perfsuite.records.run_file import StoredCell, StoredRun, read_run
from perfsuite.records.verdict import CellVerdict
from perfsuite.report.formats.csv_file import to_csv
from perfsuite.report.formats.html import html_page, svg_file
from perfsuite.report.formats.latex import to_latex
from perfsuite.report.formats.markdown import to_markdown
from perfsuite.report.model import report_on_runs
from perfsuite.report.runs import read_runs, with_reasons
from perfsuite.report.summary import explanation_text
from perfsuite.report.terminal.tables import report_table
from perfsuite.system.environment import describe_host

COUNTED = CellPolicy(tolerance=0.02, limit=0.05, floor_s=0.0, slacks=({},))
OURS = "benchmarks/test_step.py::test_step[ddp:2]"
PLAIN = "benchmarks/test_plain.py::test_plain"
FINGERPRINT = "0123456789ab"
COMMIT = "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b"
SAVED_AT = "2026-11-21T15:02:29.852122+00:00"
MOST = 2**63 - 1

T = TypeVar("T")


def counts(flops: int) -> Counts:
    return Counts(
        flops=flops,
        ops=20,
        collectives=2,
        collective_bytes=4096,
        saved_activation_bytes=8192,
        kernel_launches=None,
    )


def run_document() -> dict[str, Any]:
    """A stored run with a cell of ours, a second one that makes charts, and a plain benchmark."""
    recipe = Recipe(parallel="ddp:2", num_workers=2)
    record = make_record(
        recipe,
        counts=counts(1_000),
        operators=(Operator(name="aten::mm", calls=3, self_s=0.001),),
    )
    verdict = CellVerdict(
        name=OURS, word="PASS", by="pairs", ratio=1.01, interval=(0.99, 1.03), num_pairs=4
    )
    record = msgspec.structs.replace(record, verdict=verdict.as_record())
    alone = make_record(Recipe(num_workers=2))
    named = (
        (OURS, msgspec.to_builtins(record)),
        (f"{OURS}2", msgspec.to_builtins(alone)),
        (PLAIN, None),
    )
    return {
        "datetime": SAVED_AT,
        "commit_info": {"id": COMMIT, "dirty": False, "branch": "main"},
        "machine_info": {"cpu": {"brand_raw": "a CPU"}, "system": "Linux", "python_version": "3"},
        "benchmarks": [
            {
                "fullname": name,
                "params": {"n": 1},
                "stats": {"median": 0.2, "data": [0.21, 0.19, 0.2]},
                "extra_info": {} if info is None else {"perfsuite": info},
            }
            for name, info in named
        ],
        "perfsuite": {
            "schema": 1,
            "fingerprint": FINGERPRINT,
            "environments": {FINGERPRINT: msgspec.to_builtins(describe_host({}, 2))},
            "probe_s": {"memory": 0.05},
            "num_failed": 0,
            "is_pull_request": False,
            "verdicts": {OURS: "PASS"},
            "accepted": [],
        },
    }


# --- what a sound file is, by the contract ---


def is_number(value: object, smallest: float = 0.0) -> bool:
    return type(value) in (int, float) and smallest <= value <= MOST  # type: ignore[operator]


def is_time(value: object) -> bool:
    return is_number(value) and value != 0


def is_sound_cell(benchmark: dict[str, Any]) -> bool:
    stats = benchmark["stats"]
    record = benchmark.get("extra_info", {}).get("perfsuite", {})
    counted = record.get("counts") or {}
    return (
        isinstance(benchmark["fullname"], str)
        and is_time(stats["median"])
        and all(map(is_time, stats.get("data", ())))
        and all(value is None or is_number(value) for value in counted.values())
    )


def is_sound(document: Any) -> bool:
    """Whether a run may serve as a baseline of this environment, in a history of one commit."""
    stamp, commit = document["perfsuite"], document["commit_info"]
    names = [benchmark["fullname"] for benchmark in document["benchmarks"]]
    return (
        (stamp["num_failed"], stamp["fingerprint"]) == (0, FINGERPRINT)
        and stamp["is_pull_request"] is False
        and not {"FAIL", "INVALID"} & set(stamp["verdicts"].values())
        and commit.get("dirty", False) is False
        and re.fullmatch("[0-9a-f]{7,64}", commit["id"]) is not None
        and COMMIT.startswith(commit["id"])
        and len(names) == len(set(names))
        and all(map(is_sound_cell, document["benchmarks"]))
    )


# --- what is done with a file ---


def store_sessions(folder: Path, document: Any) -> None:
    """As many sessions as a screen needs, each on its day unless the day itself is broken."""
    for number in range(1, MIN_SESSIONS + 1):
        if isinstance(document, dict) and document.get("datetime") == SAVED_AT:
            stored = document | {"datetime": SAVED_AT.replace("11-21", f"11-0{number}")}
        else:
            stored = document
        (folder / f"000{number}_run.json").write_bytes(as_json(stored))


def verdicts_from(storage: Path) -> list[CellVerdict | str]:
    """What stored runs say of a session whose counts grew, in words, and whose times did not."""
    chosen = choose_runs(
        storage, True, FINGERPRINT, Trunk(lambda commit: COMMIT.startswith(commit))
    )
    assert all(is_one_line(str(refused)) for refused in chosen.refused)
    history = History(
        runs=chosen.usable,
        refused=tuple(map(str, chosen.refused)),
        probe=lambda: {"memory": 0.05},
        is_of_base=COMMIT.startswith,
    )
    found: list[CellVerdict | str | None] = []
    # A thousand samples a second, and a fifth of a second each.
    for name, fingerprint, samples_per_s in ((OURS, "0" * 12, 1000.0), (PLAIN, None, None)):
        head = StoredCell(
            median_s=0.2,
            fingerprint=fingerprint,
            samples_per_s=samples_per_s,
            counts=counts(10_000),
        )
        found.append(history.find_increases(name, head, COUNTED, lambda text: None))
        if history.can_screen(name):
            found.append(history.screen(name, head, None, COUNTED, lambda text: None))
    return [verdict for verdict in found if verdict is not None]


def is_one_line(text: str) -> bool:
    return text.isprintable()


def read_or_refuse(read: Callable[[], T]) -> T | None:
    """What is read; None where it is refused, which takes one line."""
    try:
        return read()
    except PerfsuiteError as error:
        refusal = str(error)
    assert is_one_line(refusal)
    return None


def is_inert(text: str) -> bool:
    """Whether a terminal shows it as it stands, and a file takes it."""
    return all(char.isprintable() or char in "\n\t" for char in text)


def check_verdicts(folder: Path, document: Any) -> None:
    store_sessions(folder, document)

    found = verdicts_from(folder)

    for verdict in found:
        assert is_sound(document)
        if isinstance(verdict, str):
            continue
        for number in (verdict.ratio, *(verdict.interval or ())):
            assert number is None or math.isfinite(number)


def check_reports(path: Path) -> None:
    runs = read_or_refuse(lambda: tuple(map(with_reasons, read_runs([path]))))
    if runs is None:
        return
    report = report_on_runs(runs)
    texts = [to_markdown(report), to_latex(report), to_csv(report), report_table(report.rows)]
    charts = (chart for section in report.sections for chart in section.charts)
    drawn = [html_page(report), *map(svg_file, charts)]
    spoken = [report.summary.text, *(f"{one.text} {one.evidence}" for one in report.advice)]
    assert all(map(is_inert, [*texts, *drawn]))
    assert all(map(is_one_line, spoken))
    assert all("<img" not in text for text in drawn)
    assert "\\input" not in texts[1]
    for field in (field for row in csv.reader(io.StringIO(texts[2])) for field in row):
        assert not field.startswith(("=", "+", "-", "@")) or is_a_number(field)


def is_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_explanation(path: Path) -> None:
    run = read_run(path)
    if isinstance(run, StoredRun):
        base = StoredCell(median_s=0.2, counts=counts(1_000))
        for cell in run.cells.values():
            explanation_text(explain_stored(base, cell)).encode()


def check_run(folder: Path, document: Any) -> None:
    check_verdicts(folder, document)
    check_reports(folder / "0001_run.json")
    check_explanation(folder / "0001_run.json")


ACCEPTED = b"""\
# Reviewed.
[[accepted]]
cell = "benchmarks/test_step.py::test_step[ddp:2]"
kind = "slowdown"
ratio = 1.08
reason = "checks its input now"
expires = 2027-01-31

[[accepted]]
cell = "old"
kind = "renamed"
to = "new"
reason = "clearer"
expires = 2027-01-31
"""
TOML_TOKENS = st.sampled_from(
    (
        *("1e400", "nan", "-1", "9" * 5_000, "2027-02-30", "true", "[]", "{}", "[" * 3_000),
        *(r'"\u001b[2J"', '"removed"', '"count"', "'''a\nb'''", '""', r'"\ud800"'),
    )
)
KEYS = st.sampled_from(("cell", "kind", "ratio", "to", "count", r'"\u001b[2J"', "expires", "x"))


@st.composite
def broken_exceptions(draw: st.DrawFn) -> bytes:
    """The list with a value replaced or a line added, then perhaps with damaged bytes."""
    lines = ACCEPTED.decode().splitlines()
    at = draw(st.integers(2, len(lines) - 1))
    line = f"{draw(KEYS)} = {draw(TOML_TOKENS)}"
    lines[at : at + draw(st.integers(0, 1))] = [line]
    data = "\n".join(lines).encode()
    return draw(damaged(data)) if draw(st.booleans()) else data


def check_exceptions(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    accepted = read_or_refuse(lambda: read_accepted(path, datetime.date(2026, 11, 21)))
    if accepted is None:
        return
    for entry in (*accepted.entries, *accepted.expired):
        assert in_words(entry).isprintable()


CALIBRATION = {
    "schema": 1,
    "fingerprint": FINGERPRINT,
    "cells": {OURS: {"sd": 0.004, "num_pairs": 8, "round_sd": 0.003, "order_effect": -0.001}},
}


def check_calibration(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    priors = read_or_refuse(lambda: read_priors(path, FINGERPRINT)) or {}
    assert all(0 < prior.sd < math.inf for prior in priors.values())


def line_document() -> dict[str, Any]:
    """A line of cells.jsonl, of a cell that a run beside it holds."""
    line = CellLine(
        fullname=OURS,
        outcome="passed",
        reason="no flops: nobody counted",
        step_times_s=(0.21, 0.19, 0.2),
        perfsuite=make_record(Recipe(parallel="ddp:2", num_workers=2)),
    )
    document: dict[str, Any] = msgspec.json.decode(encode_line(line))
    return document


def check_lines(folder: Path, data: bytes) -> None:
    (folder / "run.json").write_bytes(as_json(run_document()))
    (folder / "cells.jsonl").write_bytes(data + b"\n" + as_json(line_document()) + b"\n")

    check_reports(folder / "run.json")


# --- the tests ---

Check = Callable[[Path, Any], None]
CASES: dict[str, tuple[st.SearchStrategy[Any], Check]] = {
    "a mutated run": (mutated(run_document()), check_run),
    "a damaged run": (
        damaged(as_json(run_document())),
        lambda folder, data: check_bytes(folder, data),
    ),
    "broken exceptions": (
        broken_exceptions(),
        lambda folder, data: check_exceptions(folder / "accepted.toml", data),
    ),
    "a mutated calibration": (
        st.one_of(mutated(CALIBRATION).map(as_json), damaged(as_json(CALIBRATION))),
        lambda folder, data: check_calibration(folder / "calibration.json", data),
    ),
    "mutated lines": (
        st.one_of(mutated(line_document()).map(as_json), damaged(as_json(line_document()))),
        check_lines,
    ),
}


def check_bytes(folder: Path, data: bytes) -> None:
    path = folder / "0001_run.json"
    path.write_bytes(data)

    check_reports(path)
    check_explanation(path)
    assert all(isinstance(verdict, str) for verdict in verdicts_from(folder))


def try_many(case: str, folder: Path, num_examples: int) -> None:
    strategy, check = CASES[case]

    @settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def tried(value: Any) -> None:
        check(folder, value)

    tried()


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_broken_nothing_crashes_and_no_verdict_comes_of_it(
    case: str, tmp_path: Path
) -> None:
    try_many(case, tmp_path, 80)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "num_examples"), [*zip(CASES, (6_000, *[1_000] * 4), strict=True)]
)
def test_ten_thousand_broken_files_crash_nothing_and_yield_no_verdict(
    case: str, num_examples: int, tmp_path: Path
) -> None:
    try_many(case, tmp_path, num_examples)


def test_the_sound_file_yields_both_verdicts(tmp_path: Path) -> None:
    store_sessions(tmp_path, run_document())

    found = verdicts_from(tmp_path)

    assert is_sound(run_document())
    screened = [verdict for verdict in found if isinstance(verdict, CellVerdict)]
    assert str(found[0]).startswith("flops ")
    assert len(found) == 3
    assert [(verdict.word, verdict.by) for verdict in screened] == [("PASS", "screen")] * 2


def unsound(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document with one thing in it that forbids every verdict."""
    first, stamp = document["benchmarks"][0], document["perfsuite"]
    for changed in (
        {"perfsuite": stamp | {"num_failed": 1}},
        {"perfsuite": stamp | {"is_pull_request": True}},
        {"perfsuite": stamp | {"fingerprint": "another"}},
        {"perfsuite": stamp | {"verdicts": {OURS: "FAIL"}}},
        {"perfsuite": None},
        {"commit_info": {"id": COMMIT, "dirty": True}},
        {"commit_info": {"id": "--upload-pack=x"}},
        {"commit_info": {"id": "f" * 40}},
        {"benchmarks": [first, first]},
        {"benchmarks": [first | {"stats": {"median": math.nan}}]},
        {"benchmarks": [first | {"stats": {"median": 0.2, "data": [0.2, -0.2]}}]},
        {"datetime": "0001-01-01T00:00:00+14:00"},
    ):
        yield document | changed


@pytest.mark.parametrize("document", list(unsound(run_document())), ids=lambda document: None)
def test_one_unsound_thing_forbids_every_verdict(document: dict[str, Any], tmp_path: Path) -> None:
    store_sessions(tmp_path, document)

    assert verdicts_from(tmp_path) == []
