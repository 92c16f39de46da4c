"""Somebody sets the machine's clock while it is timed: no duration may come from that clock."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import perfsuite
from perfsuite import Recipe, Workload
from perfsuite.experiments.rank_session import Session
from perfsuite.ranks.messages import GroupPolicy
from perfsuite.ranks.pickling import packed_by_value

# What reads the clock that people set, `date.today()` apart, which tells when an exception expires.
WALL_CLOCK = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime"),
    *("datetime.now", "datetime.utcnow", "datetime.today"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
}


def wall_clocks_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCK:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"line {node.lineno}: from time import {one.name}" for one in node.names)


def test_no_module_reads_the_clock_that_people_set() -> None:
    sources = Path(perfsuite.__file__).parent.rglob("*.py")

    found = {path: list(wall_clocks_in(path.read_text())) for path in sources}

    assert len(found) > 100
    assert {path: clocks for path, clocks in found.items() if clocks} == {}


def test_a_module_that_did_would_be_found() -> None:
    source = "from time import time\nimport datetime\nbegan = datetime.datetime.now()"

    assert list(wall_clocks_in(source)) == [
        "line 1: from time import time",
        "line 3: datetime.datetime.now",
    ]


def jumping() -> Workload:
    """A workload in whose ranks the clock goes back by an hour at each reading."""
    import itertools
    import time

    import torch

    hours = itertools.count(0, -3600)

    def build_model() -> torch.nn.Module:
        time.time = lambda: float(next(hours))
        return torch.nn.Linear(4, 3)

    return Workload(
        name="jumping",
        build_model=build_model,
        build_dataset=lambda _: [(torch.randn(4), number % 3) for number in range(16)],
        loss=torch.nn.functional.cross_entropy,
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        micro_batch_size=4,
    )


def test_a_cell_whose_clock_is_set_back_by_hours_has_the_times_of_any_other() -> None:
    session = Session(GroupPolicy(), say=print)
    try:
        with packed_by_value([sys.modules[__name__]]):
            outcome = session.measure_cell(jumping(), Recipe(), num_rounds=3, num_iterations=2)
    finally:
        session.close()

    assert len(outcome.step_times_s) == 3
    assert all(0 < step_time_s < 60 for step_time_s in outcome.step_times_s)
    stages_s = outcome.record.stages_s
    assert all(0 <= (getattr(stages_s, name) or 0) < 60 for name in stages_s.__struct_fields__)
