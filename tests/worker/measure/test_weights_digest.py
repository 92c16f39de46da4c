"""Digests of weights: equal for equal bits, and of any dtype."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses import FakeTensorMode

from perfsuite.records.cell import TensorDigest
from perfsuite.worker.measure import weights_digest as module
from perfsuite.worker.measure.weights_digest import (
    BufferDigests,
    digest_buffers,
    digest_weights,
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


def test_buffers_of_any_numbers_have_digests_and_what_is_not_finite_hides_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.BatchNorm1d(2)
    model.num_batches_tracked.add_(3)
    for name, one in (
        ("eights", torch.full((2,), 2.0).to(torch.float8_e4m3fn)),
        ("flags", torch.ones(3, dtype=torch.bool)),
        ("waves", torch.full((2,), 1 + 2j)),
        ("least", torch.tensor([float("inf"), 5.0, float("nan")])),
        ("empty", torch.zeros(0)),
        # Which have none.
        ("sparse", torch.eye(2).to_sparse()),
        ("none", None),
        ("nowhere", torch.zeros(2, device="meta")),
        ("lazy", torch.nn.parameter.UninitializedBuffer()),
    ):
        model.register_buffer(name, one)

    floats = digest_buffers([model, model])
    whole = digest_buffers([model, model], are_whole=True)

    assert [one.total for one in floats] == [0.0, 2.0, 4.0, 6.0, 5.0, 0.0]
    assert [one.total for one in whole] == [3.0, 3.0]
    monkeypatch.setattr(module, "_MOST_CONVERTED", 2)
    assert [one.total for one in digest_buffers([model], are_whole=True)] == [3.0]


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
    digests = BufferDigests()
    gc.collect()
    gc.freeze()
    try:
        digests.end_step(None, 1)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    known = [one() for one in digests._modules]
    assert any(one is model[1] for one in known)
    assert not any(one is odd or one is model[0] for one in known)
    assert digest_buffers([Agent()])[0].total == 2.0
    with FakeTensorMode():
        faked = torch.nn.BatchNorm1d(2)
    assert digest_buffers([faked]) == ()


def test_moved_buffers_have_an_order_of_their_own_and_no_mean_of_nothing() -> None:
    names = ("twos", "constant", "rounding", "flag", "count")
    first = torch.ones(2), torch.ones(3), torch.zeros(4), torch.zeros(1), torch.tensor(0)
    last = (torch.full((2,), 2.0), torch.ones(3), torch.full((4,), 1e-8), torch.ones(1))
    last = (*last, torch.tensor(10**9))  # beside which all others are small
    found = []
    for order in (slice(None), slice(None, None, -1)):
        model, digests = torch.nn.Module(), BufferDigests()
        for name, one in zip(names[order], first[order], strict=True):
            model.register_buffer(name, one.clone())
        digests.end_step(model, 1)
        for name, one in zip(names[order], last[order], strict=True):
            getattr(model, name).copy_(one)
        digests.end_step(model, 3)
        digests.end_step(model, 72)
        found.append(digests.moved())

    assert found[0] == found[1]
    assert [*found[0]] == [3, 72]
    assert [one.num_elements for one in found[0][72]] == [1, 2, 1]
    assert BufferDigests().moved() == {}


def test_modules_that_end_are_no_change_of_those_that_live_on() -> None:
    digests, model = BufferDigests(), torch.nn.BatchNorm1d(2)
    digests.end_step(model, 1)
    del model
    gc.collect()
    digests.end_step(None, 3)

    assert digests.moved() == {}
