"""Cells that an earlier start of the same launch has finished, and that are not measured again.

torchrun starts all ranks again when one has died; cells.jsonl holds what was finished until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfsuite.errors import PerfsuiteError
from perfsuite.records.cell import CellLine, Outcome, decode_line, encode_line
from perfsuite.system.files import write_atomically


def keep_finished(path: Path, *, since_s: float) -> dict[str, CellLine]:
    """Return the finished cells by node id, and leave them, and nothing else, in the file.

    Skipped cells cost nothing and are not kept, nor is a line that was cut off. A file that is
    older than the launch, which began at `since_s` by the system's clock, is another launch's.

    Raises:
        WriteError: The file cannot be written.
    """
    if not path.exists() or path.stat().st_mtime < since_s:
        return {}
    finished = {}
    for data in path.read_bytes().splitlines():
        try:
            line = decode_line(data)
        except ValueError:
            continue
        if line.outcome != "skipped":
            finished[line.fullname] = line
    write_atomically(path, b"".join(encode_line(line) + b"\n" for line in finished.values()))
    return finished


def finished_outcome(finished: Mapping[str, CellLine], name: str) -> Outcome | None:
    """Return what was measured of a cell before the restart; None of one that was not finished.

    Raises:
        PerfsuiteError: The cell failed before it was measured.
    """
    line = finished.get(name)
    if line is None:
        return None
    if line.perfsuite is None:
        raise PerfsuiteError(
            f"failed before torchrun started the ranks again, and is not run twice: {line.reason}"
        )
    return Outcome(
        step_times_s=line.step_times_s, num_iterations=None, record=line.perfsuite, missing={}
    )
