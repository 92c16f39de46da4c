from __future__ import annotations

import random
from collections.abc import Callable

import numpy
import pytest
import torch

from perfsuite.worker.equivalence.trace.draws import (
    modules_that_drew,
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
MODULES = ["random", "random", "numpy.random", "numpy.random", "torch", "torch"]
NAMES = ["random", "gauss", "rand", "randn", "torch.rand", "torch.randperm"]


@pytest.mark.parametrize("draw", DRAWS, ids=NAMES)
def test_what_was_drawn_is_drawn_again(draw: Callable[[], float]) -> None:
    state = read_random_state(CPU)
    drawn = [draw() for _ in range(5)]

    restore_random_state(state, CPU)

    assert [draw() for _ in range(5)] == drawn


@pytest.mark.parametrize(("draw", "module"), [*zip(DRAWS, MODULES, strict=True)], ids=NAMES)
def test_one_number_drawn_is_seen(draw: Callable[[], float], module: str) -> None:
    before = read_random_state(CPU)

    draw()

    assert modules_that_drew(before, read_random_state(CPU)) == [module]


def test_the_second_of_two_normals_is_seen_although_the_generator_rests() -> None:
    numpy.random.seed(1)
    numpy.random.randn()
    before = read_random_state(CPU)  # numpy keeps the second one of the pair that it computed

    numpy.random.randn()

    assert modules_that_drew(before, read_random_state(CPU)) == ["numpy.random"]


def test_nothing_drawn_moves_nothing() -> None:
    before = read_random_state(CPU)

    torch.ones(3).sum()
    random.Random(3).random()
    numpy.random.default_rng(3).random()
    torch.rand(3, generator=torch.Generator().manual_seed(1))

    assert modules_that_drew(before, read_random_state(CPU)) == []


def test_a_state_is_a_copy_that_later_draws_do_not_change() -> None:
    state = read_random_state(CPU)
    first = float(torch.rand(()))
    torch.rand(1000)
    numpy.random.rand(1000)

    restore_random_state(state, CPU)

    assert modules_that_drew(state, read_random_state(CPU)) == []
    assert float(torch.rand(())) == first


def test_a_cpu_has_no_state_of_a_device() -> None:
    assert [*read_random_state(CPU)] == ["random", "numpy.random", "torch"]


def test_the_generator_of_the_device_is_compared_where_there_is_one() -> None:
    state = read_random_state(CPU)

    one, other = state | {"torch.cuda": b"12"}, state | {"torch.cuda": b"13"}

    assert modules_that_drew(one, one) == []
    assert modules_that_drew(one, other) == ["torch.cuda"]
    assert modules_that_drew(state, one) == modules_that_drew(one, state) == []
