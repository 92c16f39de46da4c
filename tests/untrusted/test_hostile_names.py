"""Names from stored files, as the terminal shows them, and where they lead: nowhere.

What each format makes of them is tested beside that format, in tests/report.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from broken_files import as_json

from perfsuite.cli import app
from perfsuite.records.verdict import CellVerdict
from perfsuite.report.formats.trackers import log_to_tensorboard
from perfsuite.report.runs import read_runs
from perfsuite.report.summary import verdict_sentence
from perfsuite.report.terminal.gate import verdict_lines

# Clears the screen, sets the window's title, turns text around, ends the line.
ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e\r\nPASS"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\u202e\r\nPASS"


def run_of(name: str, **changes: Any) -> dict[str, Any]:
    more_s = 0.001 * len(changes)
    record = {
        "schema": 1,
        "operators": [{"name": f"op {name}", "calls": 3, "self_s": more_s}],
    }
    return {
        "datetime": "2026-11-21T15:02:29+00:00",
        "commit_info": {"id": "5db0efb7", "dirty": False},
        "machine_info": {"system": name},
        "benchmarks": [
            {
                "fullname": name,
                "stats": {"median": 0.2 + more_s, "data": [0.2 + more_s]},
                "extra_info": {"perfsuite": record},
            }
        ],
        **changes,
    }


def stamp(**changes: Any) -> dict[str, Any]:
    plain = {
        "schema": 1,
        "fingerprint": "a",
        "probe_s": None,
        "num_failed": 0,
        "is_pull_request": False,
        "verdicts": {},
        "accepted": [],
    }
    return {"perfsuite": plain | changes}


def told_by(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """All that a verb writes to the terminal."""
    monkeypatch.setattr(sys, "argv", ["perfsuite", *arguments])
    with pytest.raises(SystemExit):
        app.main()
    told = capsys.readouterr()
    return told.out + told.err


def is_inert(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"commit_info": {"id": ESCAPES}},
        stamp(fingerprint=ESCAPES),
        stamp(verdicts={ESCAPES: "FAIL"}),
        stamp(**{ESCAPES: 1}),
        {"benchmarks": [run_of(ESCAPES)["benchmarks"][0]] * 2},
    ],
)
def test_the_list_of_stored_runs_shows_escapes_as_text(
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "baselines" / "Linux\x1b[2J"
    folder.mkdir(parents=True)
    (folder / "0001_\x1b[31mred.json").write_bytes(as_json(run_of(ESCAPES, **changes)))
    (folder / os.fsdecode(b"0002_\xff.json")).write_bytes(b"")
    monkeypatch.chdir(tmp_path)

    told = told_by(["baseline", "list", "--json", "list.json"], monkeypatch, capsys)

    assert len(json.loads((tmp_path / "list.json").read_text())["runs"]) == 2
    assert is_inert(told)
    assert r"Linux\x1b[2J/0001_\x1b[31mred.json" in told


def test_an_explanation_shows_escapes_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_bytes(as_json(run_of(ESCAPES)))
    (tmp_path / "b.json").write_bytes(as_json(run_of(ESCAPES, more=1)))
    monkeypatch.chdir(tmp_path)

    told = told_by(["explain", "a.json", "b.json"], monkeypatch, capsys)

    assert is_inert(told)
    assert told.startswith(f"{SHOWN}: +0.5 %; moved most: op {SHOWN} ")


@pytest.mark.parametrize(
    "arguments", [["report", "a.json"], ["explain", "a.json", "a.json", "\x1b[2J"]]
)
def test_what_else_is_told_of_a_run_shows_escapes_as_text(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = run_of(ESCAPES)
    del run["benchmarks"][0]["extra_info"]["perfsuite"]
    (tmp_path / "a.json").write_bytes(as_json(run))
    monkeypatch.chdir(tmp_path)

    told = told_by(arguments, monkeypatch, capsys)

    assert is_inert(told)
    assert SHOWN in told or r"\x1b[2J" in told


def test_a_gates_lines_show_escapes_as_text_and_keep_the_lines_of_a_log() -> None:
    cell = CellVerdict(
        name=ESCAPES, word="ERROR", by="collection", reason="it ended:\n  | \x1b[31mred"
    )

    lines = "\n".join(verdict_lines([cell], None, {"head": ESCAPES}))

    assert is_inert(lines)
    assert f"head: {SHOWN}\n" in lines
    assert f"{SHOWN}: it ended:\n  | \\x1b[31mred" in lines
    assert is_inert(verdict_sentence(cell))


@pytest.mark.parametrize("name", ["../../escaped", "/etc/passwd", "..", "a/../../../b", ESCAPES])
def test_the_folder_of_a_tracked_cell_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(
        as_json(run_of(name) | {"benchmarks": [{"fullname": name, "stats": {"median": 0.2}}]})
    )

    log_to_tensorboard(read_runs([tmp_path / "run.json"]), tmp_path / "events")

    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 2
    assert all(path.parts[0] in ("events", "run.json") for path in written)
    assert all(is_inert(str(path)) for path in written)


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/b", ""])
def test_a_run_is_not_saved_under_a_name_that_leads_elsewhere(
    name: str, pytester: pytest.Pytester
) -> None:
    result = pytester.runpytest_inprocess(f"--benchmark-save={name}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not list(pytester.path.rglob("*.json"))
