"""Rows, records and files of runs that nobody measured, for the tests of reports."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from perfsuite.records.cell import CellRecord, Counts, Memory, StageTimes
from perfsuite.records.equivalence import Numerics
from perfsuite.records.recipe import Recipe
from perfsuite.records.verdict import Verdict
from perfsuite.report.model import Report, report_on_rows
from perfsuite.report.rows import Row

NO_COUNTS = dict.fromkeys(Counts.__struct_fields__)
NO_STAGES = dict.fromkeys(StageTimes.__struct_fields__)
STAGES = {"load": 0.001, "forward": 0.001, "backward": 0.0015, "optimizer": 0.0005}

# What each format could take for its own: markup, separators, ends, formulas, escapes.
HOSTILE = (
    "<script>alert(1)</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "a|b\\|c`d``e```",
    "*bold* _it_ [x](http://x) ![i](j) @team #12 :tada: &lt; <!-- ~~s~~ $x$",
    "two\nlines\r\nand\x1b[2J \u202ereversed",
    r"\input{/etc/passwd} 100% a_b^c {x} ~ # & $y$",
    '=HYPERLINK("http://x","y")',
    "+1",
    "-1+1",
    "@SUM(A1)",
    " leading and trailing ",
    "quote ' and \" and , and ;",
    "{{ 7 * 7 }} {% raw %}",
)


def verdict(word: str = "PASS", **changes: Any) -> Verdict:
    fields: dict[str, Any] = {
        "word": word,
        "by": "pairs",
        "ratio": 1.01,
        "interval": (0.99, 1.03),
        "num_pairs": 4,
        "detectable": 0.03,
    }
    return Verdict(**(fields | changes))


def record(
    *,
    workload: str = "lenet",
    stages_s: dict[str, float] | None = None,
    counts: dict[str, int] | None = None,
    peak_bytes: int | None = None,
    samples_per_s: float | None = 1000.0,
    losses: tuple[float, ...] = (),
    given: Verdict | None = None,
    fingerprint: str = "0123456789ab",
    **recipe: Any,
) -> CellRecord:
    made = Recipe(**recipe)
    memory = None
    if peak_bytes is not None:
        memory = Memory(metric="live_storage_peak", peak_bytes=peak_bytes, per_rank=(peak_bytes,))
    return CellRecord(
        workload=workload,
        recipe=made.as_dict(),
        device="cpu",
        world_size=made.plan.world_size,
        exercised=True,
        fingerprint=fingerprint,
        numerics=Numerics(status="equivalent", check="T0", error=0.0, limit=0.0, power="5/5"),
        stages_s=StageTimes(**(NO_STAGES | (STAGES if stages_s is None else stages_s))),
        counts=Counts(**(NO_COUNTS | (counts or {}))),
        memory=memory,
        samples_per_s=samples_per_s,
        losses=losses,
        verdict=given,
    )


def cell(name: str, times_s: tuple[float, ...] = (0.004,) * 10, **fields: Any) -> Row:
    """A measured cell of ours; the further fields are those of its record and its recipe."""
    made = record(**fields)
    return Row(
        name=name,
        step_time_s=median(times_s),
        rounds_s=times_s,
        record=made,
        recipe=Recipe(**made.recipe),
        verdict=made.verdict,
    )


def report_on(*rows: Row, **changes: Any) -> Report:
    given: dict[str, Any] = {"sources": [], "remarks": []}
    return report_on_rows(rows, **(given | changes))


def benchmark(
    name: str, times_s: tuple[float, ...] = (0.001, 0.002, 0.003), info: object = None
) -> dict[str, Any]:
    """One benchmark of a file; `info` is what stands under "perfsuite" in its extra_info."""
    if isinstance(info, CellRecord):
        info = msgspec.to_builtins(info)
    return {
        "fullname": name,
        "stats": {"median": median(times_s), "data": list(times_s)},
        "extra_info": {} if info is None else {"perfsuite": info},
    }


def stamp(**changes: Any) -> dict[str, Any]:
    """The stamp of a session in which nothing was judged and nothing failed."""
    fields: dict[str, Any] = {
        "schema": 1,
        "fingerprint": None,
        "probe_s": None,
        "num_failed": 0,
        "is_pull_request": False,
        "verdicts": {},
        "accepted": [],
    }
    return fields | changes


def write_run(path: Path, *benchmarks: dict[str, Any], **changes: Any) -> Path:
    """Write a file as pytest-benchmark does, with other top-level keys where they are given."""
    document: dict[str, Any] = {
        "datetime": "2026-11-21T15:02:29.852122+00:00",
        "commit_info": {"id": "5db0efb7ac6bdcd7cfd9f58b9eebfe8798f3638b", "dirty": False},
        "machine_info": {"cpu": {"brand_raw": "a CPU"}, "system": "Linux"},
        "benchmarks": list(benchmarks),
    }
    path.write_text(json.dumps(document | changes))
    return path
