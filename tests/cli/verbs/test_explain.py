"""The verb `explain`: a line for each cell that two runs share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import call_verb
from made_up_runs import benchmark, record, write_run

from perfsuite.cli import app


def test_times_with_a_ratio_beyond_floats_are_shown_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "base.json", benchmark("t", (5e-324,)))
    head = write_run(tmp_path / "head.json", benchmark("t", (2.0,)))
    monkeypatch.setattr(sys, "argv", ["perfsuite", "explain", str(base), str(head)])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code in (0, None)
    assert capsys.readouterr().out == (
        "t: 5e-324 s -> 2.0 s, too large for a ratio; no stage, count or function moved by itself\n"
    )


def test_a_json_that_cannot_be_written_is_refused_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run.json", benchmark("t", (2.0,)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["perfsuite", "explain", str(run), str(run), "--json", "."])

    with pytest.raises(SystemExit) as ended:
        app.main()

    assert ended.value.code == 12
    assert capsys.readouterr() == ("", "perfsuite: cannot write .: Is a directory\n")


def test_another_environment_and_cells_of_one_run_alone_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = record(fingerprint="ba9876543210")
    base = write_run(tmp_path / "base.json", benchmark("t", (1.0,), there), benchmark("u", (1.0,)))
    head = write_run(tmp_path / "head.json", benchmark("t", (2.0,), record()))

    assert call_verb("explain", str(base), str(head)) == 0

    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("t: +100.0 %; ")
    assert f"; the environments differ: ba9876543210 -> {record().fingerprint}" in first
    assert second == "of one run alone, and not compared: 1 cell"


def test_runs_without_a_common_cell_explain_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / f"{one}.json", benchmark(one, (1.0,))) for one in ("a", "b")]

    assert call_verb("explain", *map(str, runs)) == 2

    told = "the two runs share no cell; compare two runs of the same benchmarks"
    assert capsys.readouterr().err == f"perfsuite: {told}\n"


def test_the_result_overwrites_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run.json", benchmark("t", (2.0,)))
    before = run.read_bytes()

    assert call_verb("explain", "run.json", str(run), "--json", "run.json") == 2

    told = "run.json is given twice, to read or to write; name another file"
    assert capsys.readouterr().err == f"perfsuite: {told}\n"
    assert run.read_bytes() == before
