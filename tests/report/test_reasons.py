"""Why numbers are missing: what cells.jsonl beside a run says, where it is of the same session."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import benchmark, record, write_run

from perfsuite.records.cell import CellLine, encode_line
from perfsuite.report.model import report_on_runs
from perfsuite.report.runs import Run, read_runs, with_reasons

TIMES_S = (0.1, 0.2, 0.3)


def line(name: str, outcome: str = "passed", reason: str | None = None) -> CellLine:
    return CellLine(
        fullname=name,
        outcome=outcome,  # type: ignore[arg-type]
        reason=reason,
        step_times_s=TIMES_S if outcome == "passed" else (),
        perfsuite=record() if outcome == "passed" else None,
    )


def read(folder: Path, *lines: CellLine, tail: bytes = b"") -> Run:
    path = write_run(folder / "run.json", benchmark("a", TIMES_S, record()), benchmark("plain"))
    data = b"".join(encode_line(one) + b"\n" for one in lines)
    (folder / "cells.jsonl").write_bytes(data + tail)
    return with_reasons(read_runs([path])[0])


def test_each_cell_has_the_reason_of_its_missing_numbers(tmp_path: Path) -> None:
    run = read(tmp_path, line("a", reason="no memory: it is a pipe\nof old"), tail=b'{"fulln')

    assert [row.note for row in run.rows] == ["no memory: it is a pipe", None]
    assert run.missing == ()


def test_cells_that_measured_nothing_are_remarked_with_their_reason(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        line("a"),
        line("b", "skipped", "dp:2 needs 2 GPUs"),
        line("c", "failed", "RankFailureError: rank 1\nlog"),
    )

    assert report_on_runs([run]).remarks == (
        "NOT EXERCISED b: dp:2 needs 2 GPUs",
        "FAILED c: RankFailureError: rank 1",
    )


@pytest.mark.parametrize("name", ["another cell", "a"])
def test_reasons_of_another_session_are_not_taken(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "run.json", benchmark("a", (0.9, 0.8), record()))
    (tmp_path / "cells.jsonl").write_bytes(encode_line(line(name, reason="no memory")) + b"\n")
    (run,) = read_runs([path])

    assert with_reasons(run) == run


def test_a_run_alone_is_as_it_is(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path / "run.json", benchmark("a", TIMES_S, record()))])

    assert with_reasons(run) == run
