"""Digests of weights: equal for equal bits, and of any dtype."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses import FakeTensorMode

from perfsuite.records.cell import TensorDigest
from perfsuite.worker.measure.weights_digest import (
    digest_buffers,
    digest_weights,
    modules_with_buffers,
    moved_buffers,
)


def test_a_digest_has_the_sum_and_the_sum_of_squares_of_each_tensor() -> None:
    tensors = [torch.tensor([[1.0, 2.0], [-3.0, 0.0]]), torch.tensor(2.0), torch.zeros(0)]

    assert digest_weights(tensors) == (
        TensorDigest(4, 0.0, pytest.approx(14.0)),
        TensorDigest(1, 2.0, 4.0),
        TensorDigest(0, 0.0, 0.0),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_digest_is_computed_in_float64(dtype: torch.dtype) -> None:
    weights = torch.full((1000,), 0.1, dtype=dtype, requires_grad=True)

    (digest,) = digest_weights([weights])

    element = float(weights[0].detach())
    assert digest.total == pytest.approx(1000 * element, rel=1e-13)
    assert digest.squares == pytest.approx(1000 * element**2, rel=1e-13)


def test_complex_weights_count_as_pairs_and_one_changed_bit_shows() -> None:
    drawn = torch.randn(100, dtype=torch.complex64)
    moved = drawn.clone()
    moved[7] = torch.nextafter(moved[7].real, torch.tensor(9.0)) + 1j * moved[7].imag

    before, again, after = digest_weights([drawn, drawn.clone(), moved])

    assert before.num_elements == 200
    assert repr(before) == repr(again) != repr(after)


def test_buffers_without_a_sum_have_no_digest() -> None:
    model = torch.nn.BatchNorm1d(2)
    for name, odd in (
        ("eights", torch.zeros(2).to(torch.float8_e4m3fn)),
        ("sparse", torch.eye(2).to_sparse()),
        ("flags", torch.ones(2, dtype=torch.bool)),
        ("waves", torch.ones(2, dtype=torch.complex64)),
        ("empty", torch.zeros(0)),
        ("none", None),
        ("nowhere", torch.zeros(2, device="meta")),
        ("lazy", torch.nn.parameter.UninitializedBuffer()),
    ):
        model.register_buffer(name, odd)

    mean, variance, empty = digest_buffers([model, model])

    assert (mean.total, variance.total, empty.num_elements) == (0.0, 2.0, 0)


def test_buffers_of_a_loop_are_those_of_all_modules_that_live() -> None:
    class Odd(torch.nn.Module):  # which no `super().__init__()` has made a module
        def __init__(self) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    class Agent(torch.nn.Module):  # whose buffers are of experience
        buffers = ()

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.ones(2))

    model, odd = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), Odd()
    assert modules_with_buffers(model) == [model[1]]
    gc.collect()
    gc.freeze()
    try:
        living = modules_with_buffers(None)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    assert {id(model[1])} <= {*map(id, living)}
    assert id(odd) not in {*map(id, living)}
    assert digest_buffers([Agent()])[0].total == 2.0
    with FakeTensorMode():
        faked = torch.nn.BatchNorm1d(2)
    assert digest_buffers([faked]) == ()


def test_moved_buffers_have_an_order_of_their_own_and_no_mean_of_nothing() -> None:
    first = torch.ones(2), torch.ones(3), torch.zeros(4), torch.zeros(1)
    last = torch.full((2,), 2.0), torch.ones(3), torch.full((4,), 1e-8), torch.ones(1)
    digests = [digest_weights(one) for one in (first, last)]
    swapped = [digest_weights(one[::-1]) for one in (first, last)]

    assert [one.num_elements for one in moved_buffers(digests)] == [1, 2]
    assert moved_buffers(swapped) == moved_buffers(digests)
    assert moved_buffers([()]) == moved_buffers([]) == ()
