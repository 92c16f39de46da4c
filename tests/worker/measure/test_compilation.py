"""What torch.compile did: breaks of graphs, recompilations, seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.utils

from perfsuite.worker.measure.counters import count_iteration, read_compilation
from perfsuite.worker.measure.iterations import run_iterations


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    """In a rank nothing has been compiled before."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_where_nothing_is_compiled_there_is_nothing_to_count() -> None:
    torch.zeros(1).square()

    assert read_compilation() is None


def test_one_graph_for_one_shape_has_no_break_and_is_compiled_once() -> None:
    square = torch.compile(torch.square, backend="eager")

    square(torch.ones(3))
    square(torch.ones(3))

    compiled = read_compilation()
    assert compiled is not None
    counts, seconds = compiled
    assert counts == {"graph_breaks": 0, "recompiles": 0}
    assert seconds > 0


def test_each_break_of_a_graph_counts_once() -> None:
    def broken(value: torch.Tensor) -> torch.Tensor:
        value = value + 1
        torch._dynamo.graph_break()
        value = value * 2
        torch._dynamo.graph_break()
        return value - 3

    compiled = torch.compile(broken, backend="eager")

    compiled(torch.ones(3))
    compiled(torch.ones(3))

    found = read_compilation()
    assert found is not None
    assert found[0] == {"graph_breaks": 2, "recompiles": 0}


def test_a_frame_that_is_compiled_again_for_another_type_is_a_recompilation() -> None:
    square = torch.compile(torch.square, backend="eager")

    for dtype in (torch.float32, torch.float64, torch.int32, torch.float32):
        square(torch.ones(3, dtype=dtype))

    found = read_compilation()
    assert found is not None
    assert found[0] == {"graph_breaks": 0, "recompiles": 2}


def test_counting_a_compiled_step_compiles_nothing() -> None:
    compiled = torch.compile(lambda value: torch.relu(value + 1), backend="eager")
    compiled(torch.ones(3))
    before = read_compilation()

    found = run_iterations(count_iteration(), lambda _: compiled(torch.ones(4, 5)))

    after = read_compilation()
    assert before is not None
    assert after is not None
    assert (before[0], found.ops) == (after[0], 3)  # ones, add, relu
