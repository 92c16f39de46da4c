from __future__ import annotations

import random
from collections.abc import Callable

import numpy
import pytest
import torch

from perfsuite.worker.equivalence.trace.draws import (
    RandomState,
    read_random_state,
    restore_random_state,
)

CPU = torch.device("cpu")

DRAWS: list[Callable[[], float]] = [
    random.random,
    lambda: random.gauss(0, 1),
    lambda: float(numpy.random.rand()),
    lambda: float(numpy.random.randn()),
    lambda: float(torch.rand(())),
    lambda: float(torch.randperm(1000)[0]),
]
NAMES = ["random", "gauss", "rand", "randn", "torch.rand", "torch.randperm"]


@pytest.mark.parametrize("draw", DRAWS, ids=NAMES)
def test_what_was_drawn_is_drawn_again(draw: Callable[[], float]) -> None:
    state = read_random_state(CPU)
    drawn = [draw() for _ in range(5)]

    restore_random_state(state, CPU)

    assert [draw() for _ in range(5)] == drawn


@pytest.mark.parametrize("draw", DRAWS, ids=NAMES)
def test_one_number_drawn_is_seen(draw: Callable[[], float]) -> None:
    before = read_random_state(CPU)

    draw()

    assert read_random_state(CPU).has_moved_from(before)


def test_the_second_of_two_normals_is_seen_although_the_generator_rests() -> None:
    numpy.random.seed(1)
    numpy.random.randn()
    before = read_random_state(CPU)  # numpy keeps the second one of the pair that it computed

    numpy.random.randn()

    after = read_random_state(CPU)
    assert numpy.array_equal(after.numpy[1], before.numpy[1])
    assert after.has_moved_from(before)


def test_nothing_drawn_moves_nothing() -> None:
    before = read_random_state(CPU)

    torch.ones(3).sum()
    random.Random(3).random()
    numpy.random.default_rng(3).random()
    torch.rand(3, generator=torch.Generator().manual_seed(1))

    assert not read_random_state(CPU).has_moved_from(before)


def test_a_state_is_a_copy_that_later_draws_do_not_change() -> None:
    state = read_random_state(CPU)
    first = float(torch.rand(()))
    torch.rand(1000)
    numpy.random.rand(1000)

    restore_random_state(state, CPU)

    assert not read_random_state(CPU).has_moved_from(state)
    assert float(torch.rand(())) == first


def test_a_cpu_has_no_state_of_a_device() -> None:
    assert read_random_state(CPU).cuda is None


def test_the_generator_of_the_device_is_compared_where_there_is_one() -> None:
    state = read_random_state(CPU)

    def on_device(*bits: int) -> RandomState:
        cuda = torch.tensor(bits, dtype=torch.uint8)
        return RandomState(state.python, state.numpy, state.torch, cuda)

    assert not on_device(1, 2).has_moved_from(on_device(1, 2))
    assert on_device(1, 3).has_moved_from(on_device(1, 2))
    assert not on_device(1, 2).has_moved_from(state)
