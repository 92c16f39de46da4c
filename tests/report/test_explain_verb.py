"""The verb `explain`: a line for each cell that two runs share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from made_up import benchmark, write_run

from perfsuite import cli


def test_times_whose_ratio_no_float_holds_are_told_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "base.json", benchmark("t", (5e-324,)))
    head = write_run(tmp_path / "head.json", benchmark("t", (2.0,)))
    monkeypatch.setattr(sys, "argv", ["perfsuite", "explain", str(base), str(head)])

    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code in (0, None)
    assert capsys.readouterr().out == (
        "t: 5e-324 s -> 2.0 s, more than a ratio can say; no stage, count or function moved by "
        "itself\n"
    )
