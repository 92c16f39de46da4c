"""The verb `explain`: a line for each cell that two runs share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from made_up_runs import benchmark, write_run

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
