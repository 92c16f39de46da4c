"""Digests of weights: equal for equal bits, and of any dtype."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim import SGD, AdamW, Optimizer, RMSprop, SparseAdam

from perfsuite.gate.arms.arm import CellRun
from perfsuite.gate.judge.numerics_change import describe_numerics_change
from perfsuite.records.cell import TensorDigest
from perfsuite.worker.measure import weights_digest as module
from perfsuite.worker.measure.weights_digest import (
    BufferDigests,
    WeightDigests,
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


SHARE = 2.0**-20  # of the largest gradient


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (SGD, 0.1 * 5 * (8 * SHARE)),
        # Of five elements one is 0, one is below the error, one 3 and one 6 times as large.
        (AdamW, 0.1 * (1 + math.hypot(1 / 3, 1 / 6, SHARE))),
        (RMSprop, 0.1 * (1 + math.hypot(1 / 3, 1 / 6, SHARE))),
    ],
)
def test_what_rounding_may_have_moved_is_told_of_each_weight(
    make: Callable[..., Optimizer], expected: float
) -> None:
    error = 8 * SHARE
    weight, other = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(3))
    empty, without = nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(2))
    optimizer = make([{"params": [weight, empty, without]}, {"params": [other], "lr": 0.0}], lr=0.1)
    digests = WeightDigests(2)
    for number in range(3):
        weight.grad = torch.tensor([0.0, error / 2, 3 * error, 6 * error, 8.0])
        empty.grad, other.grad = torch.zeros(0), torch.ones(3)
        optimizer.step()
        digests.note_update(optimizer)
        digests.end_step()
        assert len(digests.by_step) == min(2, number + 1)

    first, second = digests.by_step.values()
    assert first[0].moved_by_rounding == pytest.approx(expected)
    assert second[0].moved_by_rounding == pytest.approx(2 * expected)
    assert [one.moved_by_rounding for one in first[1:]] == [0.0, 0.0, 0.0]
    # Without elements, or with none, there is no gradient.
    assert [one.num_gradients for one in first] == [1, 0, 0, 1]
    assert [one.num_gradients for one in second] == [2, 0, 0, 2]


def test_a_gradient_of_zeros_is_none_and_a_rate_need_not_be_known() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    weights[0].grad, weights[1].grad = torch.zeros(2), torch.tensor([0.0, 1e-30])
    optimizer = SGD(weights, lr=torch.tensor(0.1))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": None})
    optimizer.param_groups[1]["params"][0].grad = torch.ones(1)
    digests = WeightDigests(1)
    digests.note_update(optimizer)
    digests.end_step()

    assert [one.num_gradients for one in digests.by_step[1]] == [0, 1, 0, 1]
    assert digests.by_step[1][3].moved_by_rounding == 0.0


def test_gradients_of_any_form_tell_what_rounding_may_have_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 2)
    table = nn.Embedding(4, 2, sparse=True)
    waves = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    halves = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    (2.0 * table(torch.tensor([1, 1]))).sum().backward()
    waves.grad, halves.grad = waves.detach().clone(), halves.detach().clone()
    told = []
    for make, weights in ((SparseAdam, table.parameters()), (AdamW, [waves]), (AdamW, [halves])):
        optimizer = make(weights, lr=0.1)
        optimizer.step()
        digests = WeightDigests(1)
        digests.note_update(optimizer)
        digests.end_step()
        told.append(digests.by_step[1][0].moved_by_rounding / (0.1 * SHARE))

    assert told == [pytest.approx(math.sqrt(2)), *[pytest.approx(math.sqrt(3), rel=0.01)] * 2]


class Attention(nn.Module):
    """Its key's bias adds the same to all scores of a query: its gradient is 0, and rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))
        for part in self.parts:
            nn.init.zeros_(part.bias)

    def forward(self, inputs: torch.Tensor, *, is_fused: bool) -> torch.Tensor:
        query, key, value = (part(inputs) for part in self.parts)
        if is_fused:
            return nn.functional.scaled_dot_product_attention(query, key, value)
        return torch.softmax(query @ key.mT / math.sqrt(48), dim=-1) @ value


def train(make: Callable[..., Optimizer], *, is_fused: bool, rate: float = 3e-4) -> CellRun:
    torch.manual_seed(3)
    model = Attention()
    optimizer, digests = make(model.parameters(), lr=rate), WeightDigests(3)
    for _ in range(4):
        model(torch.randn(8, 16, 48), is_fused=is_fused).square().mean().backward()
        optimizer.step()
        digests.note_update(optimizer)
        digests.end_step()
        optimizer.zero_grad()
    record: dict[str, Any] = {"weights": [*digests.by_step.values()]}
    return CellRun(outcome="passed", reason=None, rounds_s=(1.0,), record=record)


@pytest.mark.parametrize("make", [SGD, AdamW, RMSprop])
def test_a_fused_attention_is_rounding_and_a_rate_one_percent_higher_is_none(
    make: Callable[..., Optimizer],
) -> None:
    base, fused = train(make, is_fused=False), train(make, is_fused=True)
    faster = train(make, is_fused=True, rate=3.03e-4)

    assert str(describe_numerics_change([base] * 2, [fused] * 2)).startswith("rounding")
    assert str(describe_numerics_change([base] * 2, [faster] * 2)).startswith("changed: ")
