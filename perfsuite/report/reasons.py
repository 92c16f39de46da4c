"""Why a number, or a whole cell, is missing from a run: what cells.jsonl beside it says.

The two files are written by one session, but either may be older than the other: a reason counts
only where both hold the same rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from perfsuite.json_file import MAX_JSON_BYTES
from perfsuite.records import CellLine, decode_line
from perfsuite.remote import RemotePath
from perfsuite.report.runs import Run
from perfsuite.report.tables import not_exercised_lines
from perfsuite.untrusted import printable, read_untrusted


def with_reasons(run: Run) -> Run:
    """Return the run with the reasons that lie beside its file; as it is where none do."""
    if isinstance(run.path, RemotePath):  # storages hold runs alone
        return run
    lines = {printable(line.fullname): line for line in _lines(run.path.with_name("cells.jsonl"))}
    ours = [row for row in run.rows if row.record is not None]
    if not ours or any(
        row.name not in lines or lines[row.name].step_times_s != row.rounds_s for row in ours
    ):
        return run
    rows = tuple(
        dataclasses.replace(row, note=_reason(lines[row.name])) if row.name in lines else row
        for row in run.rows
    )
    missing = [*not_exercised_lines(list(lines.values())), *_failed(lines)]
    return dataclasses.replace(run, rows=rows, missing=tuple(map(printable, missing)))


def _failed(lines: dict[str, CellLine]) -> Iterator[str]:
    for name, line in lines.items():
        if line.outcome == "failed" and line.perfsuite is None:
            yield f"FAILED {name}: {_reason(line) or 'no reason is known'}"


def _reason(line: CellLine) -> str | None:
    return None if line.reason is None else printable(line.reason.partition("\n")[0])


def _lines(path: Path) -> Iterator[CellLine]:
    try:
        data = read_untrusted(path, max_bytes=MAX_JSON_BYTES)
    except (OSError, ValueError):
        return
    for text in data.splitlines():
        try:
            yield decode_line(text)
        # A killed session can leave half of its last line.
        except ValueError:
            continue
