"""What is kept of the file of finished cells when ranks are started again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from made_up_cells import make_record

from perfsuite.errors import PerfsuiteError
from perfsuite.plugin.fixtures import finished_outcome
from perfsuite.plugin.session.torchrun import keep_finished
from perfsuite.records.cell import CellLine, encode_line


def line_of(name: str, **changes: Any) -> CellLine:
    fields: dict[str, Any] = {
        "outcome": "passed",
        "reason": None,
        "step_times_s": (0.25, 0.5),
        "perfsuite": make_record(),
    }
    return CellLine(fullname=name, **(fields | changes))


def write(path: Path, *lines: CellLine) -> None:
    path.write_bytes(b"".join(encode_line(line) + b"\n" for line in lines))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cells.jsonl"


def test_cells_that_passed_or_failed_are_finished_and_skipped_ones_are_not(path: Path) -> None:
    passed, failed = line_of("a"), line_of("b", outcome="failed")
    write(path, passed, line_of("c", outcome="skipped", perfsuite=None), failed)

    finished = keep_finished(path, since_s=0.0)

    assert finished == {"a": passed, "b": failed}
    assert keep_finished(path, since_s=0.0) == finished
    assert len(path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("torn", [encode_line(line_of("b"))[:-30], b'{"\x80"', b"\0" * 64])
def test_a_line_that_was_cut_off_is_not_kept(path: Path, torn: bytes) -> None:
    write(path, line_of("a"))
    with path.open("ab") as file:
        file.write(torn)

    assert list(keep_finished(path, since_s=0.0)) == ["a"]
    assert path.read_bytes() == encode_line(line_of("a")) + b"\n"


def test_a_file_from_before_the_launch_is_another_launchs(path: Path) -> None:
    write(path, line_of("a"))
    os.utime(path, (100.0, 100.0))

    assert keep_finished(path, since_s=100.5) == {}
    assert keep_finished(path, since_s=99.5) != {}


def test_without_a_file_nothing_is_finished(path: Path) -> None:
    assert keep_finished(path, since_s=0.0) == {}
    assert not path.exists()


def test_a_finished_cell_gives_what_was_measured() -> None:
    outcome = finished_outcome({"a": line_of("a")}, "a")

    assert outcome is not None
    assert (outcome.step_times_s, outcome.num_iterations) == ((0.25, 0.5), None)
    assert outcome.record == make_record()
    assert finished_outcome({"a": line_of("a")}, "b") is None


def test_a_cell_that_failed_before_it_was_measured_fails_again() -> None:
    line = line_of("a", outcome="failed", perfsuite=None, reason="RankFailureError: rank 1 of 2")

    with pytest.raises(PerfsuiteError) as caught:
        finished_outcome({"a": line}, "a")

    assert str(caught.value) == (
        "failed before torchrun started the ranks again, and is not run twice: "
        "RankFailureError: rank 1 of 2"
    )
