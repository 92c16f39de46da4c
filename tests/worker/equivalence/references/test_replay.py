from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from perfsuite.worker.equivalence.references.replay import Replay
from perfsuite.worker.equivalence.trace.draws import Draw, DrawRecorder

CPU = torch.device("cpu")
Draws = list[list[Draw]]


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def record(function: Callable[..., Any], *inputs: Any) -> tuple[Any, list[Draw]]:
    """What the function returns, and what it drew."""
    model = Function(function)
    recorder = DrawRecorder([model], [0], CPU)
    with recorder.micro_batch() as chunks:
        result = model(*inputs)
    return result, chunks[0]


def replay(parts: Draws | None, function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """What the function returns when it is given recorded draws, and the replay."""
    num_samples = len(inputs[0]) if inputs else 0
    given = Replay(parts, CPU, **{"rows": (0, num_samples, num_samples)} | options)
    with given:
        result = function(*inputs)
    given.finish()
    return result, given


def drop(inputs: Tensor) -> Tensor:
    return functional.dropout(inputs, 0.4)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": drop,
    "along another dimension": lambda x: functional.dropout(x.mT, 0.4).mT,
    "fused": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "normal": lambda x: x + torch.randn(len(x), 1, dtype=x.dtype),
    "two": lambda x: functional.dropout(x + torch.rand_like(x), 0.4),
    "mixed": lambda x: x + x[torch.randperm(len(x))],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_parts_of_a_batch_draw_together_what_each_drew(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    torch.manual_seed(1)
    parts = [torch.randn(size, 5, dtype=dtype) for size in (3, 4)]
    recorded = [record(function, part) for part in parts]

    result, given = replay([draws for _, draws in recorded], function, torch.cat(parts))

    assert (given.wrong, given.unknown) == ([], [])
    assert torch.equal(result, torch.cat([expected for expected, _ in recorded]))
    # As given out they serve for the whole batch, and for a slice of it.
    again, _ = replay([given.given], function, torch.cat(parts))
    assert torch.equal(again, result)
    if name != "mixed":
        some, _ = replay([given.given], function, torch.cat(parts)[2:6], rows=(2, 6, 7))
        assert torch.equal(some, result[2:6])


@pytest.mark.parametrize("heads_first", [False, True])
def test_heads_and_samples_share_a_dimension_in_either_order(heads_first: bool) -> None:
    def attend(samples: Tensor) -> Tensor:
        heads = samples.transpose(0, 1) if heads_first else samples
        dropped = drop(heads.flatten(0, 1)).view(heads.shape)
        return dropped.transpose(0, 1) if heads_first else dropped

    torch.manual_seed(1)
    parts = [torch.randn(size, 2, 5) for size in (3, 4)]
    recorded = [record(attend, part) for part in parts]
    draws, whole = [drawn for _, drawn in recorded], torch.cat(parts)
    expected = torch.cat([dropped for dropped, _ in recorded])

    result, given = replay(draws, attend, whole, heads_first=heads_first)

    assert given.has_heads
    assert torch.equal(result, expected)
    options = {"rows": (2, 6, 7), "heads_first": heads_first}
    some, _ = replay([given.given], attend, whole[2:6], **options)
    assert torch.equal(some, expected[2:6])
    other, _ = replay(draws, attend, whole, heads_first=not heads_first)
    assert not torch.equal(other, expected)


def test_what_was_drawn_in_a_low_precision_is_the_same_in_float64() -> None:
    inputs = torch.zeros(4, 3)
    noise, draws = record(lambda x: x.bfloat16() + torch.randn_like(x.bfloat16()), inputs)

    result, _ = replay([draws], lambda x: x + torch.randn_like(x), inputs.double())

    assert torch.equal(result, noise.double())


def test_a_model_that_recomputes_by_itself_is_given_the_same_mask_again() -> None:
    torch.manual_seed(2)
    weight = torch.randn(5, 5, requires_grad=True)
    inputs = torch.randn(6, 5)

    def block(inputs: Tensor) -> Tensor:
        return drop(inputs @ weight).tanh()

    expected, draws = record(block, inputs)
    expected.sum().backward()
    gradient, weight.grad = weight.grad, None
    torch.manual_seed(3)  # so that it draws others by itself

    def run() -> None:
        checkpoint(block, inputs, use_reentrant=False).sum().backward()

    replay([draws], run)

    assert torch.equal(weight.grad, gradient)


ONE = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("recorded", "function", "wrong"),
    [
        (
            [lambda x: x],
            drop,
            "a rank draws 0 times, and one process 1 times; is a rank in eval mode?",
        ),
        (
            [drop, lambda x: x],
            drop,
            "a rank draws 0 times, and one process 1 times; is a rank in eval mode?",
        ),
        (
            [drop],
            lambda x: x,
            "a rank draws 1 times, and one process 0 times; is a rank in eval mode?",
        ),
        (
            [drop, lambda x: functional.dropout(x, 0.7)],
            drop,
            "a rank calls aten.bernoulli_ with 0.3, and one process with 0.6; has a rank another "
            "probability?",
        ),
        (
            [torch.rand_like],
            torch.randn_like,
            "a rank calls aten.rand_like, one process aten.randn_like",
        ),
        (
            [lambda x: torch.rand(2, 3)],
            torch.rand,
            None,
        ),
    ],
)
def test_what_one_process_draws_otherwise_is_told(
    recorded: list[Any], function: Any, wrong: str | None
) -> None:
    if wrong is None:
        _, given = replay([record(recorded[0], ONE)[1]], lambda: torch.rand(4, 3))
        assert given.wrong == [
            "aten.rand draws (2, 3) in the parts of the batch and (4, 3) in the whole of it, so "
            "its samples cannot be told apart"
        ]
        return
    parts = [record(one, ONE)[1] for one in recorded]

    _, given = replay(parts, function, torch.cat([ONE] * len(parts)))

    assert given.wrong == [wrong]


def test_parts_that_draw_the_same_numbers_are_told_unless_chance_explains_it() -> None:
    def seeded(inputs: Tensor) -> Tensor:
        torch.manual_seed(7)
        return drop(inputs)

    few, many = torch.ones(4, 3), torch.ones(4, 30)

    told = [
        replay([record(seeded, part)[1] for _ in range(2)], drop, torch.cat([part] * 2))[1].wrong
        for part in (few, many)
    ]

    assert told == [
        [],
        [
            "parts 1 and 2 of the batch, which have other data, draw the same numbers; seed each "
            "rank by its number"
        ],
    ]


def test_draws_that_were_not_recorded_are_refused_where_there_are_any() -> None:
    assert replay(None, torch.relu, ONE)[1].unknown == []
    assert replay(None, drop, ONE)[1].unknown == [
        "aten.bernoulli_ draws random numbers unseen, in a compiled model or in threads"
    ]


def test_draws_of_the_backward_pass_are_refused() -> None:
    inputs = ONE.clone().requires_grad_()

    def run() -> None:
        inputs.register_hook(lambda gradient: gradient + torch.randn_like(gradient))
        inputs.sum().backward()

    assert replay([[]], run)[1].unknown == [
        "aten.randn_like draws random numbers in the backward pass"
    ]
